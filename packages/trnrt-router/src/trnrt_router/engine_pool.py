"""The engines behind one router: which are ready, and handing a request to the right one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence

from trnrt_router.affinity import Affinity, Candidate, RouteKey
from trnrt_router.engine_client import DeltaSink, EngineClient, EngineState
from trnrt_router.errors import ApiError, EngineLost, Overloaded, Unavailable
from trnrt_router.protocol import EngineInfo, EngineRequest

logger = logging.getLogger(__name__)

RETRY_AFTER_S = 2.0


class EnginePool:
    """A fixed set of engines that come and go.

    Args:
        wait_for_all: not ready before every engine was ready once; afterwards one is enough.
    """

    def __init__(
        self,
        clients: Sequence[EngineClient],
        affinity: Affinity,
        *,
        wait_for_all: bool = False,
    ) -> None:
        self.clients = tuple(clients)
        self.affinity = affinity
        self._by_name = {client.name: client for client in clients}
        self._awaited = set(self._by_name) if wait_for_all else set()
        for client in clients:
            client.on_state = self._note_state

    def start(self) -> None:
        for client in self.clients:
            client.start()

    async def close(self) -> None:
        await asyncio.gather(*(client.close() for client in self.clients))

    @property
    def is_ready(self) -> bool:
        return not self._awaited and any(self._ready())

    @property
    def info(self) -> EngineInfo:
        """What the engines have in common, from one that has been connected.

        Raises:
            Unavailable: none has been connected yet.
        """
        for client in (*self._ready(), *self.clients):
            if client.info is not None:
                return client.info
        raise Unavailable(self.describe(), retry_after_s=RETRY_AFTER_S)

    def describe(self) -> str:
        """Return one line on why not every engine is ready."""
        waiting = (
            f"engine {client.name} {client.state}" + (f" ({client.detail})" * bool(client.detail))
            for client in self.clients
            if client.state is not EngineState.READY
        )
        return ", ".join(waiting) or "all engines are ready"

    async def submit(
        self,
        requests: Sequence[EngineRequest],
        open_sink: Callable[[], DeltaSink],
        *,
        key: RouteKey,
        exclude: Collection[str] = (),
    ) -> EngineClient:
        """Start requests on the best engine that takes them, and bind their session to it.

        Every attempt gets a sink of its own: a lost one may hold what the lost engine said.

        A lost engine is passed over. A full one is too, unless it is the session's home: the
        cache lies there, and one refusal does not move a session.

        Raises:
            ApiError: no engine takes them.
        """
        ready = {client.name: client for client in self._ready() if client.name not in exclude}
        refusal: ApiError | None = None
        home = self.affinity.bound_engine(key.session)
        for name in self.affinity.rank(key, [_candidate(client) for client in ready.values()]):
            try:
                await ready[name].submit(requests, open_sink())
            except EngineLost as error:
                logger.warning("engine refused to connect name=%s error=%s", name, error)
                refusal = refusal or error
                continue
            except (Overloaded, Unavailable) as error:
                refusal = error
                if name == home:
                    break
                continue
            self.affinity.bind(key, name)
            return ready[name]
        raise refusal or Unavailable(self.describe(), retry_after_s=RETRY_AFTER_S)

    async def flush(self, salt: str | None) -> list[str]:
        """Let every engine forget the prefixes of a salt, or all; return the engines' names.

        Raises:
            ApiError: as `_tell_all`.
        """
        told = await self._tell_all(lambda client: client.flush(salt))
        if salt is None:
            for name in told:
                self.affinity.forget_cache_of(name)
        return told

    async def release_session(self, session_id: str) -> list[str]:
        """Let every engine unpin a session, which may have moved; return the engines' names.

        Raises:
            ApiError: as `_tell_all`.
        """
        return await self._tell_all(lambda client: client.release_session(session_id))

    async def _tell_all(self, tell: Callable[[EngineClient], Awaitable[None]]) -> list[str]:
        """Tell all engines the same.

        Raises:
            Unavailable: some engine could not be told (a lost one may come back with what lies on
                its host); the others were. To say it again does no harm.
        """

        async def outcome(client: EngineClient) -> ApiError | None:
            try:
                await tell(client)
            except ApiError as error:
                return error
            return None

        failures = [e for e in await asyncio.gather(*map(outcome, self.clients)) if e is not None]
        if failures:
            raise Unavailable(
                f"{len(failures)} of {len(self.clients)} engines could not be told: "
                + "; ".join(error.message for error in failures),
                retry_after_s=RETRY_AFTER_S,
            )
        return [client.name for client in self.clients]

    def _ready(self) -> list[EngineClient]:
        return [client for client in self.clients if client.state is EngineState.READY]

    def _note_state(self, client: EngineClient) -> None:
        if client.state is EngineState.READY:
            self._awaited.discard(client.name)
        elif client.state is EngineState.LOST:
            self.affinity.forget_cache_of(client.name)


def _candidate(client: EngineClient) -> Candidate:
    slots = client.info.max_num_seqs if client.info is not None else 0
    return Candidate(client.name, client.num_in_flight, slots)
