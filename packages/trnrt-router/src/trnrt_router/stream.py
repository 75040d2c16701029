"""Server-sent events: framing, comments and the response that carries them.

The one place that writes `data: `.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping

import msgspec
from litestar.types import Message, Receive, Scope, Send

from trnrt_router.disconnect import ClientGone, until_disconnect
from trnrt_router.errors import ApiError

_encode = msgspec.json.Encoder().encode


def event(body: msgspec.Struct) -> bytes:
    """Return one data event holding a JSON object."""
    return b"data: %b\n\n" % _encode(body)


def error_event(error: ApiError) -> bytes:
    """Return the event that ends a stream which cannot be completed; no `DONE` follows it."""
    return event(error.reply())


def comment(text: str) -> bytes:
    """Return a line that clients skip; it keeps an idle connection alive."""
    return b": %b\n\n" % text.encode()


DONE = b"data: [DONE]\n\n"


class EventStream:
    """An ASGI response that sends events until they end or the client leaves.

    Args:
        events: framed events; cancelled when the client leaves.
        on_end: called once, whatever ended the response, even if no event was ever asked for.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        headers: Mapping[str, str],
        on_end: Callable[[], None],
    ) -> None:
        self._events = events
        self._on_end = on_end
        every = {
            "content-type": "text/event-stream; charset=utf-8",
            "cache-control": "no-cache",
            "x-accel-buffering": "no",
            **headers,
        }
        self._headers = [(name.encode(), value.encode("latin-1")) for name, value in every.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        try:
            await until_disconnect(receive, self._send_all(send))
        except ClientGone:
            pass
        finally:
            self._on_end()

    async def _send_all(self, send: Send) -> None:
        await _send(send, {"type": "http.response.start", "status": 200, "headers": self._headers})
        async for data in self._events:
            await _send(send, {"type": "http.response.body", "body": data, "more_body": True})
        await _send(send, {"type": "http.response.body", "body": b"", "more_body": False})


async def _send(send: Send, message: Message) -> None:
    """Send one message.

    Raises:
        ClientGone: the connection is closed. Of requests sent ahead of their answers uvicorn tells
            only the last that its client left, and uvloop says so with a bare RuntimeError.
    """
    try:
        await send(message)
    except (OSError, RuntimeError) as error:
        raise ClientGone from error
