"""Deltas of one client request on their way from an engine's stream to its handler."""

from __future__ import annotations

import asyncio

from trnrt_router.protocol import TokenDelta


class Mailbox:
    """Collect deltas until the one reader takes them; a slow reader finds several at once.

    Waiting has a limit, but no timer of its own: one timer lives as long as somebody waits and
    looks now and then how long it has been quiet, because a timer per token would cost more than
    the rest of this class.
    """

    def __init__(self) -> None:
        self._deltas: list[TokenDelta] = []
        self._arrival: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._limit_at = 0.0

    def put(self, delta: TokenDelta) -> None:
        self._deltas.append(delta)
        if self._arrival is not None:
            _wake(self._arrival)

    async def take(self, timeout_s: float) -> list[TokenDelta]:
        """Return what has arrived, waiting for the first; empty when nothing came in time."""
        if not self._deltas:
            loop = asyncio.get_running_loop()
            self._limit_at = loop.time() + timeout_s
            self._arrival = loop.create_future()
            if self._timer is None or self._timer.when() > self._limit_at:
                self._start_timer(loop)
            try:
                await self._arrival
            finally:
                self._arrival = None
        deltas, self._deltas = self._deltas, []
        return deltas

    def close(self) -> None:
        """Stop the timer; nobody will wait again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self.close()
        self._timer = loop.call_at(self._limit_at, self._check, loop)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        if self._arrival is None:
            return
        if loop.time() >= self._limit_at:
            _wake(self._arrival)
        else:
            self._start_timer(loop)


def _wake(arrival: asyncio.Future[None]) -> None:
    if not arrival.done():
        arrival.set_result(None)
