"""The engine as a library: requests in, streams of tokens out, on one asyncio event loop.

Everything here runs in the caller's event loop and waits for no step; the work is done by
`EngineLoop` in its own thread. So health, statistics and aborts are answered while a step runs.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from trnrt_engine.api import (
    EngineHealth,
    EngineInfo,
    EngineRequest,
    EngineStats,
    FinishReason,
    RequestError,
    RequestProgress,
    TokenDelta,
)
from trnrt_engine.config import EngineConfig
from trnrt_engine.core import EngineCore, stats_of
from trnrt_engine.errors import DuplicateRequest, EngineUnavailable
from trnrt_engine.feed import Feed
from trnrt_engine.intake import make_request
from trnrt_engine.loop import Abort, Close, EngineLoop, Flush, ReleaseSession
from trnrt_engine.queue_bound import QueueBound
from trnrt_engine.request import Request, RequestStatus

logger = logging.getLogger(__name__)

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class _Live:
    """A request that has not ended, which the loop works on, and where its deltas go."""

    request: Request
    stream: Feed[TokenDelta] | None


class Engine:
    """One model, its caches and its loop.

    Made by `start` or `run`; all methods belong to the event loop that called it.
    """

    def __init__(
        self,
        build: Callable[[], EngineCore],
        *,
        max_waiting: int,
        max_queue_prefill_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._event_loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[EngineCore] = self._event_loop.create_future()
        self._core: EngineCore | None = None
        self._bound = QueueBound(
            max_waiting=max_waiting, max_prefill_s=max_queue_prefill_s, now_s=clock()
        )
        self._live: dict[str, _Live] = {}
        self._frames: set[Feed[list[TokenDelta]]] = set()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._closed_because = ""
        self._has_ended = False
        self._loop = EngineLoop(
            build,
            on_ready=lambda core: self._call(self._become_ready, core),
            on_exit=lambda error: self._call(self._become_dead, error),
            deliver=lambda deltas: self._call(self._take_deltas, deltas),
            clock=clock,
        )

    @classmethod
    async def start(cls, config: EngineConfig, *, progress: Progress | None = None) -> Self:
        """Load a model and wait until it can serve.

        Args:
            progress: told in plain words what is being done; called from another thread.

        Raises:
            TrnrtEngineError, TrnrtKernelsError, OSError: the model or the settings cannot be
                served; the message says why.
        """

        def build() -> EngineCore:
            from trnrt_engine.loading import load_core

            return load_core(config, progress=progress)

        return await cls.run(
            build,
            max_waiting=config.max_waiting,
            max_queue_prefill_s=config.max_queue_prefill_s,
        )

    @classmethod
    async def run(
        cls,
        build: Callable[[], EngineCore],
        *,
        max_waiting: int,
        max_queue_prefill_s: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> Self:
        """Start the loop on a core and wait until it can serve.

        Args:
            build: makes model, caches and scheduler, in the loop's thread.
            max_waiting: requests taken beyond those that can run at once.
            max_queue_prefill_s: no more are taken while the prompts of those taken need longer.

        Raises:
            Exception: what `build` raised.
        """
        engine = cls(
            build,
            max_waiting=max_waiting,
            max_queue_prefill_s=max_queue_prefill_s,
            clock=clock,
        )
        engine._loop.start()
        try:
            engine._core = await engine._ready
        except asyncio.CancelledError:
            engine._loop.send(Close())  # leaves as soon as the build returns
            raise
        except Exception:
            await asyncio.to_thread(engine._loop.join)
            raise
        return engine

    @property
    def info(self) -> EngineInfo:
        """What a router must know of this engine."""
        return self._get_core().info

    async def submit(self, spec: EngineRequest) -> None:
        """Take a request; its deltas are read from `frames`.

        Raises:
            InvalidRequest: a field is out of range, too long, or the id is in use.
            EngineOverloaded: too many are waiting, or too much is to be computed before it.
            EngineUnavailable: draining, closed or dead.
        """
        self._submit(spec, None)

    def add(self, spec: EngineRequest) -> Feed[TokenDelta]:
        """Take a request and return its deltas.

        Closing the stream early (`aclose`, or the end of `async with`) aborts it; a mere `break`
        out of the loop does not close it.

        Raises:
            InvalidRequest, EngineOverloaded, EngineUnavailable: as `submit`.
        """
        stream: Feed[TokenDelta] = Feed(lambda: self._abort(spec.request_id))
        self._submit(spec, stream)
        return stream

    async def abort(self, request_id: str) -> None:
        """End a request; it is told so in a last delta. Unknown ids have ended already."""
        self._abort(request_id)

    def progress(self, request_id: str) -> RequestProgress | None:
        """Say how far a request is from its first token; None for one that has ended."""
        live = self._live.get(request_id)
        if live is None:
            return None
        request = live.request
        if (told := self._loop.progress.get(request_id)) is not None:
            return told
        is_waiting = request.status is RequestStatus.WAITING
        return RequestProgress(
            position=max(len(self._get_core().scheduler.waiting), 1) if is_waiting else 0,
            num_computed_tokens=request.num_prefilled_tokens,
            num_prompt_tokens=request.num_prompt_tokens,
        )

    async def flush(self, salt: str | None = None) -> None:
        """Forget what is cached under a salt, or everything; before the next step."""
        self._loop.send(Flush(salt))

    async def release_session(self, session_id: str) -> None:
        """Let go of what a session pinned; one that pinned nothing is none."""
        self._loop.send(ReleaseSession(session_id))

    def frames(self) -> Feed[list[TokenDelta]]:
        """Return the deltas of all requests from now on, one list a step, until the engine ends."""
        feed: Feed[list[TokenDelta]] = Feed(lambda: self._frames.discard(feed))
        if self._has_ended:
            feed.end()
        else:
            self._frames.add(feed)
        return feed

    def stats(self) -> EngineStats:
        """Return load and counters."""
        return stats_of(self._get_core())

    def health(self) -> EngineHealth:
        """Return whether the engine lives and takes requests."""
        is_alive = self._loop.is_alive
        detail = self._closed_because or ("" if self._core is not None else "loading the model")
        return EngineHealth(
            is_alive=is_alive,
            is_ready=is_alive and not detail,
            detail=detail,
            step_running_s=self._loop.step_running_s(),
        )

    async def drain(self, *, grace_s: float | None = None) -> None:
        """Take no more requests and wait for those accepted.

        Args:
            grace_s: abort what is left after so long; None waits for ever.
        """
        self._closed_because = self._closed_because or "the engine is draining"
        try:
            await asyncio.wait_for(self._is_idle.wait(), grace_s)
        except TimeoutError:
            logger.warning("drain ran out of time requests=%d", len(self._live))
            for request_id in self._live:
                self._abort(request_id)
            await self._is_idle.wait()

    async def close(self) -> None:
        """End every request and the loop's thread."""
        self._closed_because = self._closed_because or "the engine is closed"
        self._loop.send(Close())
        await asyncio.to_thread(self._loop.join)
        self._end_all(FinishReason.ABORT, None)

    def _submit(self, spec: EngineRequest, stream: Feed[TokenDelta] | None) -> None:
        if self._closed_because:
            raise EngineUnavailable(f"no requests are taken: {self._closed_because}")
        core, now_s = self._get_core(), self._clock()
        if spec.request_id in self._live:
            raise DuplicateRequest(
                f"request_id {spec.request_id} is in use by a request that has not ended",
                param="request_id",
            )
        request = make_request(spec, core.limits, arrival_s=now_s)
        if not self._live:
            self._bound.begin(now_s)
        self._bound.check(
            num_requests=len(self._live),
            num_places=core.info.max_num_seqs,
            num_tokens=sum(live.request.num_missing_tokens for live in self._live.values()),
            tokens_per_s=core.scheduler.prefill_tokens_per_s,
            now_s=now_s,
        )
        self._live[spec.request_id] = _Live(request, stream)
        self._is_idle.clear()
        self._loop.send(request)

    def _abort(self, request_id: str) -> None:
        if request_id in self._live:
            self._loop.send(Abort(request_id))

    def _get_core(self) -> EngineCore:
        if self._core is None:
            raise EngineUnavailable("the model is still loading")
        return self._core

    def _call(self, function: Callable[..., None], *args: object) -> None:
        """Run `function` in the event loop; nothing is left to tell once that is gone."""
        try:
            self._event_loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            logger.debug("event loop is closed")

    def _become_ready(self, core: EngineCore) -> None:
        if not self._ready.done():
            self._ready.set_result(core)

    def _become_dead(self, error: Exception | None) -> None:
        if error is None:
            return
        if not self._ready.done():
            self._ready.set_exception(error)
            return
        self._closed_because = f"the engine's loop has died: {type(error).__name__}: {error}"
        unavailable = EngineUnavailable(self._closed_because)
        self._end_all(FinishReason.ERROR, unavailable.as_request_error())

    def _take_deltas(self, deltas: list[TokenDelta]) -> None:
        for feed in self._frames:
            feed.put(deltas)
        for delta in deltas:
            live = self._live.get(delta.request_id)
            stream = live.stream if live is not None else None
            if stream is not None:
                stream.put(delta)
            if delta.finish_reason is not None:
                self._live.pop(delta.request_id, None)
                self._bound.record_end(self._clock())
                if stream is not None:
                    stream.end()
        if not self._live:
            self._is_idle.set()

    def _end_all(self, reason: FinishReason, error: RequestError | None) -> None:
        ends = [TokenDelta(request_id=i, finish_reason=reason, error=error) for i in self._live]
        if ends:
            self._take_deltas(ends)
        self._has_ended = True
        for feed in self._frames:
            feed.end()
        self._frames.clear()
