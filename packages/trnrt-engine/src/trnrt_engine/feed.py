"""An asynchronous iterator that is fed from the engine's side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Feed(Generic[T]):
    """Items in the order they were put; ends after `end` or `aclose`.

    Args:
        on_close: called once when the reader leaves before the end.
    """

    def __init__(self, on_close: Callable[[], None]) -> None:
        self._queue: asyncio.Queue[T | None] = asyncio.Queue()
        self._on_close = on_close
        self._has_ended = False

    def put(self, item: T) -> None:
        """Append an item; None is not one."""
        self._queue.put_nowait(item)

    def end(self) -> None:
        """End the iteration behind the items put so far."""
        if not self._has_ended:
            self._has_ended = True
            self._queue.put_nowait(None)

    async def aclose(self) -> None:
        """Leave; what is still coming is dropped."""
        if not self._has_ended:
            self.end()
            self._on_close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        item = await self._queue.get()
        if item is None:
            self._queue.put_nowait(None)
            raise StopAsyncIteration
        return item

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
