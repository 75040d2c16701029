"""The router's end of the wire: one multiplexed stream per engine, taken apart by request.

Only this module imports the HTTP client.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol

import h11
import httpx
import msgspec

from trnrt_router.errors import ConfigError, EngineLost, ProtocolMismatch
from trnrt_router.frame_stream import UNIX, StreamRefused, read_frames
from trnrt_router.protocol import (
    PROTOCOL_VERSION,
    Abort,
    Beat,
    EngineInfo,
    EngineRequest,
    EngineStats,
    Flush,
    Frame,
    Hello,
    ReleaseSession,
    RequestError,
    RequestProgress,
    Submit,
    TokenDelta,
)
from trnrt_router.refusals import post_error, read_refusal

logger = logging.getLogger(__name__)

MSGPACK = "application/msgpack"
POST_TIMEOUT_S = 30.0
RECONNECT_S = (0.1, 0.2, 0.5, 1.0)
LOST_KIND = "EngineLost"
ORPHAN_DELTAS = 16

_encode = msgspec.msgpack.Encoder().encode


class EngineState(StrEnum):
    """Where an engine stands, seen from the router."""

    CONNECTING = "connecting"
    LOADING = "loading"
    READY = "ready"
    LOST = "lost"
    CLOSED = "closed"


class DeltaSink(Protocol):
    """Where the deltas of one or more requests go; never blocks, never raises."""

    def put(self, delta: TokenDelta) -> None: ...


class EngineClient(Protocol):
    """One engine as the router uses it."""

    name: str
    state: EngineState
    detail: str
    info: EngineInfo | None
    stats: EngineStats
    progress: Mapping[str, RequestProgress]
    on_state: Callable[[EngineClient], None]

    @property
    def num_in_flight(self) -> int:
        """Requests submitted from here and not finished."""
        ...

    def start(self) -> None:
        """Begin to connect, and to reconnect whenever the engine is lost."""
        ...

    async def submit(self, requests: Sequence[EngineRequest], sink: DeltaSink) -> None:
        """Hand over requests that start together; their deltas go to `sink`.

        Every accepted request ends with exactly one delta that has a finish reason; when the
        engine is lost that delta carries an error of kind `EngineLost`.

        Raises:
            ApiError: the engine refused (`Overloaded`, `InvalidRequest`...) or is gone
                (`EngineLost`); nothing runs.
        """
        ...

    def abort(self, request_ids: Sequence[str]) -> None:
        """Stop requests without waiting; their sinks get nothing more. Unknown ids are ignored."""
        ...

    async def flush(self, salt: str | None) -> None:
        """Let the engine forget the prefixes cached under a salt, or all (None).

        Raises:
            ApiError: the engine refused or is gone.
        """
        ...

    async def release_session(self, session_id: str) -> None:
        """Let the engine unpin what a session pinned; an unknown session is ignored.

        Raises:
            ApiError: the engine refused or is gone.
        """
        ...

    async def close(self) -> None:
        """Disconnect; running requests end with `EngineLost`."""
        ...


def _ignore_state(client: EngineClient) -> None:
    del client


class HttpEngineClient:
    """An engine process behind TCP (`http://host:port`) or a Unix socket (`unix:/path`).

    Args:
        silence_s: an engine from which nothing came for so long counts as lost.

    Raises:
        ConfigError: the address is of neither form.
    """

    def __init__(self, name: str, address: str, *, silence_s: float = 30.0) -> None:
        if not address.startswith((UNIX, "http://")):
            raise ConfigError(
                f"engine address {address!r} is neither http://HOST:PORT nor unix:/PATH"
            )
        self.name = name
        self.address = address
        self.state = EngineState.CONNECTING
        self.detail = ""
        self.info: EngineInfo | None = None
        self.stats = EngineStats()
        self.progress: Mapping[str, RequestProgress] = {}
        self.on_state: Callable[[EngineClient], None] = _ignore_state
        self._silence_s = silence_s
        self._stream_id = ""
        self._sinks: dict[str, DeltaSink] = {}
        self._to_abort: list[str] = []
        self._orphans: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._http = _http_client(address)

    @property
    def num_in_flight(self) -> int:
        return len(self._sinks)

    def start(self) -> None:
        self._spawn(self._stay_connected())

    async def close(self) -> None:
        self._set_state(EngineState.CLOSED)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail_all("the router is shutting down")
        await self._http.aclose()

    async def submit(self, requests: Sequence[EngineRequest], sink: DeltaSink) -> None:
        self._check_ready()
        body = Submit(PROTOCOL_VERSION, self._stream_id, list(requests))
        for request in requests:
            self._sinks[request.request_id] = sink
        accepted = False
        try:
            await self._tell("/submit", body)
            accepted = True
        finally:
            if not accepted:  # refused, lost, or our caller was cancelled while we waited
                self.abort([request.request_id for request in requests])

    async def flush(self, salt: str | None) -> None:
        self._check_ready()
        await self._tell("/flush", Flush(salt))

    async def release_session(self, session_id: str) -> None:
        self._check_ready()
        await self._tell("/release-session", ReleaseSession(session_id))

    def _check_ready(self) -> None:
        if self.state is not EngineState.READY:
            raise EngineLost(f"engine {self.name} is {self.state}")

    async def _tell(self, path: str, body: Submit | Flush | ReleaseSession) -> None:
        try:
            reply = await self._post(path, body)
        except httpx.TransportError as error:
            raise EngineLost(f"engine {self.name} cannot be reached: {error!r}") from error
        if reply.status_code != httpx.codes.ACCEPTED:
            raise post_error(self.name, reply.status_code, reply.content)

    def abort(self, request_ids: Sequence[str]) -> None:
        known = [name for name in request_ids if self._sinks.pop(name, None) is not None]
        if known and self.state is EngineState.READY:
            self._send_aborts(known)

    def _send_aborts(self, request_ids: Sequence[str]) -> None:
        self._to_abort += request_ids
        if len(self._to_abort) == len(request_ids):  # else a flush is on its way
            self._spawn(self._flush_aborts())

    async def _flush_aborts(self) -> None:
        await asyncio.sleep(0)  # gather what ends in the same turn of the loop
        request_ids, self._to_abort = self._to_abort, []
        try:
            await self._post("/abort", Abort(request_ids))
        except httpx.TransportError:
            logger.debug("abort not delivered engine=%s", self.name)  # its stream is gone too

    async def _post(self, path: str, body: msgspec.Struct) -> httpx.Response:
        return await self._http.post(path, content=_encode(body))

    async def _stay_connected(self) -> None:
        failures = 0
        while True:
            try:
                await read_frames(self.address, self._receive, silence_s=self._silence_s)
                reason = "the engine closed the stream"
            except StreamRefused as refused:
                refusal = read_refusal(refused.status, refused.body)
                reason = refusal.message
                if refused.status == httpx.codes.SERVICE_UNAVAILABLE:
                    failures = 0
                    self._set_state(EngineState.LOADING, reason)
                    await asyncio.sleep(RECONNECT_S[0])
                    continue
                self._complain(reason)
            except ProtocolMismatch as error:
                reason = str(error)
                self._complain(reason)
            except (OSError, h11.RemoteProtocolError, msgspec.DecodeError) as error:
                reason = repr(error)
            if self.state is EngineState.READY:
                failures = 0
                logger.warning("engine lost name=%s reason=%s", self.name, reason)
            self._set_state(EngineState.LOST, reason)
            self._fail_all(reason)
            await asyncio.sleep(RECONNECT_S[min(failures, len(RECONNECT_S) - 1)])
            failures += 1

    def _receive(self, message: Hello | Frame | Beat) -> None:
        match message:
            case Frame(deltas):
                for delta in deltas:
                    self._deliver(delta)
            case Beat(stats, progress):
                self.stats, self.progress = stats, progress
            case Hello(protocol, stream_id, info):
                if protocol != PROTOCOL_VERSION:
                    raise ProtocolMismatch(_mismatch(self.name, protocol))
                self._stream_id = stream_id
                self.info = info
                self._set_state(EngineState.READY)
                logger.info("engine connected name=%s model=%s", self.name, info.model)

    def _deliver(self, delta: TokenDelta) -> None:
        ended = delta.finish_reason is not None or delta.error is not None
        sinks = self._sinks
        sink = sinks.pop(delta.request_id, None) if ended else sinks.get(delta.request_id)
        if sink is not None:
            sink.put(delta)
        else:
            self._note_orphan(delta.request_id, ended=ended)

    def _note_orphan(self, request_id: str, *, ended: bool) -> None:
        """Abort a request that runs on though nobody wants it.

        An abort that overtook its submit found nothing to stop. A few deltas after an abort are
        only those that were under way.
        """
        if ended:
            self._orphans.pop(request_id, None)
            return
        self._orphans[request_id] += 1
        if self._orphans[request_id] % ORPHAN_DELTAS == 0:
            self._send_aborts([request_id])

    def _complain(self, reason: str) -> None:
        if reason != self.detail:  # once, not at every try
            logger.error("engine %s: %s", self.name, reason)

    def _fail_all(self, reason: str) -> None:
        error = RequestError(LOST_KIND, f"engine {self.name} was lost: {reason}")
        self._orphans.clear()
        sinks, self._sinks = self._sinks, {}
        for request_id, sink in sinks.items():
            sink.put(TokenDelta(request_id=request_id, error=error))

    def _set_state(self, state: EngineState, detail: str = "") -> None:
        changed = (state, detail) != (self.state, self.detail)
        self.state, self.detail = state, detail
        if changed:
            self.on_state(self)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _http_client(address: str) -> httpx.AsyncClient:
    is_unix = address.startswith(UNIX)
    transport = httpx.AsyncHTTPTransport(
        uds=address.removeprefix(UNIX) if is_unix else None,
        verify=False,  # no https here, and reading the machine's certificates takes a while
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
        trust_env=False,  # an engine is never behind a proxy
    )
    return httpx.AsyncClient(
        base_url="http://engine" if is_unix else address,
        transport=transport,
        headers={"content-type": MSGPACK},
        timeout=POST_TIMEOUT_S,
        trust_env=False,
    )


def _mismatch(name: str, protocol: int) -> str:
    return (
        f"engine {name} speaks protocol {protocol}, this router {PROTOCOL_VERSION}; "
        "install the same release of trnrt-router on both sides"
    )
