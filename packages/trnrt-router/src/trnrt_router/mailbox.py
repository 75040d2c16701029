"""Deltas of one client request on their way from an engine's stream to its handler."""

from __future__ import annotations

import asyncio

from trnrt_router.protocol import TokenDelta


class Mailbox:
    """Collect deltas until the one reader takes them; a slow reader finds several at once."""

    def __init__(self) -> None:
        self._deltas: list[TokenDelta] = []
        self._arrival: asyncio.Future[None] | None = None

    def put(self, delta: TokenDelta) -> None:
        self._deltas.append(delta)
        if self._arrival is not None:
            _wake(self._arrival)

    async def take(self, timeout_s: float) -> list[TokenDelta]:
        """Return what has arrived, waiting for the first; empty when nothing came in time."""
        if not self._deltas:
            loop = asyncio.get_running_loop()
            self._arrival = loop.create_future()
            timer = loop.call_later(timeout_s, _wake, self._arrival)
            try:
                await self._arrival
            finally:
                timer.cancel()
                self._arrival = None
        deltas, self._deltas = self._deltas, []
        return deltas


def _wake(arrival: asyncio.Future[None]) -> None:
    if not arrival.done():
        arrival.set_result(None)
