"""What the routes share: planning off the event loop, running, counting, draining."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

from trnrt_router.affinity import Affinity
from trnrt_router.config import RouterConfig
from trnrt_router.engine_client import EngineClient
from trnrt_router.engine_pool import RETRY_AFTER_S, EnginePool
from trnrt_router.errors import Unavailable
from trnrt_router.generation import Generation
from trnrt_router.metrics import RouterMetrics
from trnrt_router.plan import GenerationPlan
from trnrt_router.protocol import EngineInfo
from trnrt_router.requests import RequestPlanner

logger = logging.getLogger(__name__)

Planner = Callable[[bytes, Mapping[str, str], EngineInfo], GenerationPlan]


class Service:
    """One router: its engines, its text side and the requests in flight."""

    def __init__(
        self,
        config: RouterConfig,
        *,
        planner: RequestPlanner,
        pool: EnginePool,
        metrics: RouterMetrics,
    ) -> None:
        self.config = config
        self.planner = planner
        self.pool = pool
        self.metrics = metrics
        self.started_at = int(time.time())
        self.is_draining = False
        self._num_in_flight = 0
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        # One thread: a huge prompt must not take every core from the engines beside us.
        self._text_thread = ThreadPoolExecutor(1, thread_name_prefix="text")

    @classmethod
    def build(
        cls,
        config: RouterConfig,
        engines: Sequence[EngineClient],
        *,
        wait_for_all: bool = False,
    ) -> Self:
        """Read the model folder's text side and put the parts together."""
        return cls(
            config,
            planner=RequestPlanner.from_dir(
                config.model_dir,
                model_name=config.served_model_name,
                max_choices=config.max_choices,
            ),
            pool=EnginePool(engines, Affinity(), wait_for_all=wait_for_all),
            metrics=RouterMetrics(engines),
        )

    @property
    def is_ready(self) -> bool:
        """Whether new requests are welcome."""
        return self.pool.is_ready and not self.is_draining

    def check_accepting(self) -> EngineInfo:
        """Return what the engines have in common.

        Raises:
            Unavailable: draining, or no engine has been loaded yet.
        """
        if self.is_draining:
            raise Unavailable("this server is shutting down", retry_after_s=RETRY_AFTER_S)
        return self.pool.info

    async def plan(
        self, planner: Planner, body: bytes, headers: Mapping[str, str]
    ) -> GenerationPlan:
        """Work out a plan; a large body in a thread, so that streams keep their rhythm.

        Raises:
            ApiError: the request is at fault.
        """
        info = self.check_accepting()
        if len(body) <= self.config.inline_bytes:
            return planner(body, headers, info)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._text_thread, planner, body, headers, info)

    def generation(self, plan: GenerationPlan) -> Generation:
        """Return a plan ready to be started."""
        return Generation(plan, pool=self.pool, tokenizer=self.planner.tokenizer)

    def enter(self) -> None:
        """Count a request in; drain waits for it to `leave`."""
        self._num_in_flight += 1
        self._is_idle.clear()
        self.metrics.running.inc()

    def leave(self) -> None:
        """Count a request out, after its last byte."""
        self._num_in_flight -= 1
        self.metrics.running.dec()
        if self._num_in_flight == 0:
            self._is_idle.set()

    async def drain(self, grace_s: float) -> bool:
        """Take nothing new and wait for what runs; False when `grace_s` was not enough."""
        self.is_draining = True
        try:
            async with asyncio.timeout(grace_s):
                await self._is_idle.wait()
        except TimeoutError:
            logger.warning("grace period over requests=%d", self._num_in_flight)
            return False
        return True

    async def close(self) -> None:
        """Disconnect from the engines; what still runs ends with an error."""
        self.is_draining = True
        await self.pool.close()
        self._text_thread.shutdown(wait=False, cancel_futures=True)
