"""Noticing that a client has gone while its request is being worked on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from litestar import Request
from litestar.exceptions import InternalServerException
from litestar.types import Receive

T = TypeVar("T")


class ClientGone(Exception):
    """Nobody is left to answer."""


async def read_body(request: Request[Any, Any, Any]) -> bytes:
    """Read a request's body to its end.

    Raises:
        ClientGone: the client left in the middle of it.
        HTTPException: it is larger than the limit.
    """
    try:
        return await request.body()
    except InternalServerException as error:  # the framework's word for that client
        raise ClientGone from error


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, cancelling it if the client closes the connection first.

    Args:
        receive: the request's ASGI channel; its body must have been read.

    Raises:
        ClientGone: the client left; `work` has been cancelled and has cleaned up.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGone
        return working.result()
    finally:
        leaving.cancel()
        working.cancel()
        await asyncio.gather(leaving, working, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
