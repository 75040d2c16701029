"""Which requests have run out of time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator

from trnrt_engine.request import Request, RequestStatus


class Deadlines:
    """Requests by the time they must have ended; those that ended earlier are forgotten."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._serial = itertools.count()
        self._limit = 64

    def watch(self, request: Request) -> None:
        """Remember a request's deadline, if it has one."""
        if request.deadline_at_s is None:
            return
        if len(self._heap) >= self._limit:
            alive = [e for e in self._heap if e[2].status is not RequestStatus.FINISHED]
            heapq.heapify(alive)
            self._heap, self._limit = alive, max(64, 2 * len(alive))
        heapq.heappush(self._heap, (request.deadline_at_s, next(self._serial), request))

    def take_expired(self, now_s: float) -> Iterator[Request]:
        """Yield those whose time is over and that have not ended, each once."""
        while self._heap and self._heap[0][0] <= now_s:
            request = heapq.heappop(self._heap)[2]
            if request.status is not RequestStatus.FINISHED:
                yield request
