"""The engine's process: a thin HTTP shell around `trnrt_engine`.

The engine steps in its own thread; this event loop only moves bytes, so health, submit and abort
are answered while a step runs. Deltas go out on the stream whose id the request was submitted
with; a stream that ends takes its requests with it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Protocol

import msgspec
from litestar import Litestar, Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.response import Stream

from trnrt_engine.api import (
    EngineHealth,
    EngineInfo,
    EngineRequest,
    EngineStats,
    RequestProgress,
    TokenDelta,
)
from trnrt_engine.errors import (
    DuplicateRequest,
    EngineOverloaded,
    EngineUnavailable,
    InvalidRequest,
    TrnrtEngineError,
)
from trnrt_router import protocol
from trnrt_router.protocol import PROTOCOL_VERSION, Refusal, WorkerHealth, encode_frame

logger = logging.getLogger(__name__)

MSGPACK = "application/msgpack"
MAX_SUBMIT_BYTES = 512 * 1024 * 1024
BEAT_S = 1.0
MAX_PENDING_DELTAS = 1_000_000
RETRY_LOADING_S = 2.0


class ServedEngine(Protocol):
    """What the shell needs of an engine; `trnrt_engine.engine.Engine` has it."""

    @property
    def info(self) -> EngineInfo: ...
    def stats(self) -> EngineStats: ...
    async def submit(self, request: EngineRequest) -> None: ...
    async def abort(self, request_id: str) -> None: ...
    def progress(self, request_id: str) -> RequestProgress | None: ...
    async def flush(self, salt: str | None) -> None: ...
    async def release_session(self, session_id: str) -> None: ...
    def frames(self) -> AsyncIterator[list[TokenDelta]]: ...
    def health(self) -> EngineHealth: ...
    async def drain(self, *, grace_s: float | None = None) -> None: ...
    async def close(self) -> None: ...


class StreamGone(Exception):
    """A submit names a stream that has ended; its router must connect again."""


class _Stream:
    """One router's stream: what waits to be sent, and the requests that end with it."""

    def __init__(self) -> None:
        self.id = secrets.token_hex(8)
        self.owned: set[str] = set()
        self.is_closed = False
        self._pending: list[protocol.TokenDelta] = []
        self._wakeup = asyncio.Event()

    def put(self, delta: protocol.TokenDelta) -> None:
        self._pending.append(delta)
        self._wakeup.set()
        if len(self._pending) > MAX_PENDING_DELTAS:
            logger.warning("stream closed: its router does not read stream=%s", self.id)
            self.close()

    def close(self) -> None:
        self.is_closed = True
        self._wakeup.set()

    async def take(self, timeout_s: float) -> list[protocol.TokenDelta]:
        """Wait for deltas; the list is empty after `timeout_s` or a close."""
        if not self._pending and not self.is_closed:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._wakeup.wait()
            except TimeoutError:
                return []
        self._wakeup.clear()
        pending, self._pending = self._pending, []
        return pending


class Worker:
    """The state behind the routes: the engine once it is loaded, and the streams."""

    def __init__(self) -> None:
        self.health = WorkerHealth("loading", "starting")
        self._engine: ServedEngine | None = None
        self._streams: dict[str, _Stream] = {}
        self._owner: dict[str, _Stream] = {}

    @property
    def num_running(self) -> int:
        return len(self._owner)

    def report_loading(self, detail: str) -> None:
        self.health = WorkerHealth("loading", detail)

    def drain(self) -> None:
        """Take no more requests; those that run go on."""
        self.health = WorkerHealth("draining", f"{self.num_running} requests left")

    def close_streams(self) -> None:
        for stream in self._streams.values():
            stream.close()

    async def pump(self, engine: ServedEngine) -> None:
        """Become ready and hand the engine's deltas to their streams until it ends."""
        self._engine = engine
        self.health = WorkerHealth("ready")
        async for deltas in engine.frames():
            for delta in deltas:
                ended = delta.finish_reason is not None or delta.error is not None
                owner = self._owner
                stream = owner.pop(delta.request_id, None) if ended else owner.get(delta.request_id)
                if stream is not None:
                    if ended:
                        stream.owned.discard(delta.request_id)
                    stream.put(to_wire(delta))

    def engine(self) -> ServedEngine:
        if self._engine is None or self.health.state != "ready":
            raise EngineUnavailable(self.health.detail or self.health.state)
        return self._engine

    async def submit(self, body: bytes) -> None:
        """Start the requests of a `Submit`, all or none.

        Raises:
            TrnrtEngineError: the engine refuses one.
            StreamGone: the stream it names has ended.
        """
        submit: protocol.Submit = msgspec.msgpack.decode(body, type=protocol.Submit)
        engine = self.engine()
        stream = self._streams.get(submit.stream_id)
        if submit.protocol != PROTOCOL_VERSION or stream is None:
            raise StreamGone(f"no stream {submit.stream_id} here; connect again")
        started: list[str] = []
        try:
            for request in submit.requests:
                self._check_is_new(request.request_id)
                self._owner[request.request_id] = stream
                stream.owned.add(request.request_id)
                started.append(request.request_id)
                await engine.submit(from_wire(request))
        except BaseException:
            await self.abort(started)
            raise

    def _check_is_new(self, request_id: str) -> None:
        # Before ownership is taken: the request that runs under this id must stay its owner's.
        if request_id in self._owner:
            raise DuplicateRequest(f"request_id {request_id} is in use", param="request_id")

    async def abort(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            stream = self._owner.pop(request_id, None)
            if stream is not None and self._engine is not None:
                stream.owned.discard(request_id)
                await self._engine.abort(request_id)

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield frames for one router until it leaves or the worker closes its streams."""
        engine = self.engine()
        stream = _Stream()
        self._streams[stream.id] = stream
        loop = asyncio.get_running_loop()
        try:
            info = msgspec.convert(engine.info, protocol.EngineInfo, from_attributes=True)
            yield encode_frame(protocol.Hello(PROTOCOL_VERSION, stream.id, info))
            beat_at = loop.time()
            while not stream.is_closed:
                deltas = await stream.take(max(beat_at - loop.time(), 0.0))
                if deltas:
                    yield encode_frame(protocol.Frame(deltas))
                if loop.time() >= beat_at:
                    yield encode_frame(_beat(engine, stream.owned))
                    beat_at = loop.time() + BEAT_S
        finally:
            del self._streams[stream.id]
            # A cancelled generator may not await: the aborts run on their own.
            orphans = asyncio.ensure_future(self.abort(tuple(stream.owned)))
            orphans.add_done_callback(_log_failure)


def from_wire(request: protocol.EngineRequest) -> EngineRequest:
    """Turn a wire request into the engine's."""
    return msgspec.convert(request, EngineRequest, from_attributes=True)


def to_wire(delta: TokenDelta) -> protocol.TokenDelta:
    """Turn an engine delta into the wire's."""
    return msgspec.convert(delta, protocol.TokenDelta, from_attributes=True)


def _beat(engine: ServedEngine, request_ids: Iterable[str]) -> protocol.Beat:
    """Say how the engine is, and where the requests of one stream stand."""
    progress = {name: engine.progress(name) for name in request_ids}
    return protocol.Beat(
        msgspec.convert(engine.stats(), protocol.EngineStats, from_attributes=True),
        {
            name: msgspec.convert(told, protocol.RequestProgress, from_attributes=True)
            for name, told in progress.items()
            if told is not None and told.num_computed_tokens < told.num_prompt_tokens
        },
    )


def create_worker_app(worker: Worker) -> Litestar:
    """Build the ASGI application of an engine process."""
    return Litestar(
        [*_questions(worker), _stream(worker), *_commands(worker)],
        exception_handlers={
            TrnrtEngineError: _refuse,
            StreamGone: _refuse,
            msgspec.MsgspecError: _refuse,
        },
        openapi_config=None,
        logging_config=None,
        request_max_body_size=MAX_SUBMIT_BYTES,
    )


def _questions(worker: Worker) -> list[HTTPRouteHandler]:
    @get("/health", sync_to_thread=False)
    def health() -> Response[bytes]:
        return _reply(worker.health)

    @get("/info", sync_to_thread=False)
    def info() -> Response[bytes]:
        return _reply(worker.engine().info)

    @get("/stats", sync_to_thread=False)
    def stats() -> Response[bytes]:
        return _reply(worker.engine().stats())

    @get("/progress", sync_to_thread=False)
    def progress(request: Request[Any, Any, Any]) -> Response[bytes]:
        told = worker.engine().progress(request.query_params.get("request_id", ""))
        return _reply(told, status=200 if told is not None else 404)

    return [health, info, stats, progress]


def _stream(worker: Worker) -> HTTPRouteHandler:
    @get("/stream")
    async def stream(request: Request[Any, Any, Any]) -> Stream | Response[bytes]:
        asked = request.query_params.get("protocol")
        if asked != str(PROTOCOL_VERSION):
            message = f"this engine speaks protocol {PROTOCOL_VERSION}, the router {asked}"
            return _reply(Refusal("ProtocolMismatch", message), status=409)
        worker.engine()  # not ready is a status, not an empty stream
        return Stream(worker.stream(), media_type=MSGPACK)

    return stream


def _commands(worker: Worker) -> list[HTTPRouteHandler]:
    @post("/submit")
    async def submit(request: Request[Any, Any, Any]) -> Response[bytes]:
        await worker.submit(await request.body())
        return _reply(None, status=202)

    @post("/abort")
    async def abort(request: Request[Any, Any, Any]) -> Response[bytes]:
        body: protocol.Abort = msgspec.msgpack.decode(await request.body(), type=protocol.Abort)
        await worker.abort(body.request_ids)
        return _reply(None, status=202)

    @post("/flush")
    async def flush(request: Request[Any, Any, Any]) -> Response[bytes]:
        body: protocol.Flush = msgspec.msgpack.decode(await request.body(), type=protocol.Flush)
        await worker.engine().flush(body.salt)
        return _reply(None, status=202)

    @post("/release-session")
    async def release_session(request: Request[Any, Any, Any]) -> Response[bytes]:
        body: protocol.ReleaseSession = msgspec.msgpack.decode(
            await request.body(), type=protocol.ReleaseSession
        )
        await worker.engine().release_session(body.session_id)
        return _reply(None, status=202)

    return [submit, abort, flush, release_session]


def _refuse(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    del request
    retry_after_s = None
    match error:
        case InvalidRequest() | msgspec.MsgspecError():
            status = 400
        case EngineOverloaded():
            status, retry_after_s = 429, error.retry_after_s
        case EngineUnavailable():
            status, retry_after_s = 503, RETRY_LOADING_S
        case StreamGone():
            status = 410
        case _:
            status = 500
    refusal = Refusal(
        type(error).__name__,
        str(error),
        param=getattr(error, "param", None),
        retry_after_s=retry_after_s,
    )
    return _reply(refusal, status=status)


def _reply(body: object, *, status: int = 200) -> Response[bytes]:
    return Response(msgspec.msgpack.encode(body), status_code=status, media_type=MSGPACK)


def _log_failure(task: asyncio.Future[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.warning("aborting the requests of a closed stream failed", exc_info=error)
