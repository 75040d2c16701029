"""Reads an engine's stream of frames as its bytes arrive, without a task in between.

The HTTP client costs more per read than all the tokens of a step are worth; the one response
that lasts as long as the engine is therefore read by a protocol of our own over h11.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast
from urllib.parse import urlsplit

import h11

from trnrt_router.protocol import PROTOCOL_VERSION, FrameReader, StreamMessage

UNIX = "unix:"
# Silence is waited for in so many parts: when this process is held up itself, one of them is over,
# and the others hear what has arrived meanwhile.
SILENT_WAITS = 4


class StreamRefused(Exception):
    """The engine answered with a status instead of a stream."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.body = body


async def read_frames(
    address: str, on_message: Callable[[StreamMessage], None], *, silence_s: float
) -> None:
    """Connect and hand every message to `on_message` until the engine ends the stream.

    Args:
        address: `http://host:port` or `unix:/path`.
        on_message: called in the event loop; what it raises ends the stream.
        silence_s: the longest time without a byte; noticed a quarter later at most.

    Raises:
        StreamRefused: any status but 200.
        OSError: no connection, or it broke.
        TimeoutError: silence.
        h11.RemoteProtocolError, msgspec.DecodeError: not HTTP, or not our frames.
    """
    loop = asyncio.get_running_loop()
    stream = _FrameProtocol(on_message)
    async with asyncio.timeout(silence_s):
        if address.startswith(UNIX):
            path = address.removeprefix(UNIX)
            transport, _ = await loop.create_unix_connection(lambda: stream, path)
        else:
            url = urlsplit(address)
            transport, _ = await loop.create_connection(
                lambda: stream, url.hostname or "", url.port or 80
            )
    try:
        heard_at, num_quiet = stream.heard_at, 0
        while not stream.ended.done():
            if num_quiet == SILENT_WAITS:
                raise TimeoutError(f"nothing heard for {loop.time() - heard_at:.1f} s")
            await asyncio.wait((stream.ended,), timeout=silence_s / SILENT_WAITS)
            num_quiet = num_quiet + 1 if stream.heard_at == heard_at else 0
            heard_at = stream.heard_at
        stream.ended.result()
    finally:
        stream.ended.cancel()  # if nobody has ended it: closing would, with an error for nobody
        transport.close()


class _FrameProtocol(asyncio.Protocol):
    """One request and its endless response.

    Attributes:
        ended: done when the stream is over, with what ended it.
        heard_at: loop time of the last bytes.
    """

    def __init__(self, on_message: Callable[[StreamMessage], None]) -> None:
        loop = asyncio.get_running_loop()
        self._now = loop.time
        self.ended: asyncio.Future[None] = loop.create_future()
        self.heard_at = loop.time()
        self._on_message = on_message
        self._http = h11.Connection(h11.CLIENT)
        self._frames = FrameReader()
        self._status = 0
        self._refusal = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        request = h11.Request(
            method="GET",
            target=f"/stream?protocol={PROTOCOL_VERSION}",
            headers=[("host", "engine")],
        )
        head = self._http.send(request) or b""
        end = self._http.send(h11.EndOfMessage()) or b""
        cast(asyncio.Transport, transport).write(head + end)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._now()
        try:
            self._http.receive_data(data)
            while not self.ended.done():
                event = self._http.next_event()
                if event is h11.NEED_DATA:
                    return
                self._take(event)
        except Exception as error:
            # Whatever a reader raises belongs to who awaits the stream, not to the event loop.
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionResetError("the connection was closed"))

    def _take(self, event: object) -> None:
        match event:
            case h11.Data(data=data) if self._status == 200:
                for message in self._frames.feed(bytes(data)):
                    self._on_message(message)
            case h11.Data(data=data):
                self._refusal += data
            case h11.Response(status_code=status):
                self._status = status
            case h11.EndOfMessage():
                is_whole = self._status == 200
                self._end(None if is_whole else StreamRefused(self._status, self._refusal))
            case _:
                self._end(ConnectionResetError("the connection was closed"))

    def _end(self, error: Exception | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)
