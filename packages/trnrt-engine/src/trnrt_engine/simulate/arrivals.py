"""Which request of a trace is sent next, and when: what it waits for has ended, and its pause."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from trnrt_engine.simulate.trace import TraceRequest, trees_of


class Arrivals:
    """Which request is sent next, and when.

    Args:
        num_lanes: conversations, with all they started, alive at once; None = as recorded.
    """

    def __init__(self, requests: Sequence[TraceRequest], *, num_lanes: int | None) -> None:
        self._ready: list[tuple[float, int, TraceRequest]] = []
        self._order = itertools.count()
        self._num_open = {request.id: len(request.after) for request in requests}
        self._followers: dict[str, list[TraceRequest]] = defaultdict(list)
        for request in requests:
            for name in request.after:
                self._followers[name].append(request)
        self._trees = deque(trees_of(requests))
        self._tree_of = {request.id: tree[0].id for tree in self._trees for request in tree}
        self._num_left = {tree[0].id: len(tree) for tree in self._trees}
        is_recorded = num_lanes is None
        for _ in range(min(len(self._trees), len(self._trees) if num_lanes is None else num_lanes)):
            tree = self._trees.popleft()
            self._start(tree, 0.0 if is_recorded else -_first_s(tree))

    @property
    def next_s(self) -> float | None:
        """When the next one is sent; None while all wait for others."""
        return self._ready[0][0] if self._ready else None

    def take(self, now_s: float) -> Iterator[tuple[float, TraceRequest]]:
        """Yield those that have been sent by now, with the time."""
        while self._ready and self._ready[0][0] <= now_s:
            sent_s, _, request = heapq.heappop(self._ready)
            yield sent_s, request

    def end(self, request: TraceRequest, now_s: float) -> None:
        """Note that a request has ended."""
        for follower in self._followers.pop(request.id, ()):
            self._num_open[follower.id] -= 1
            if not self._num_open[follower.id]:
                self._send(follower, now_s + follower.pause_s)
        tree = self._tree_of[request.id]
        self._num_left[tree] -= 1
        if not self._num_left[tree] and self._trees:
            following = self._trees.popleft()
            self._start(following, now_s - _first_s(following))

    def _start(self, tree: list[TraceRequest], shift_s: float) -> None:
        for request in tree:
            if not request.after:
                self._send(request, request.time_s + shift_s)

    def _send(self, request: TraceRequest, at_s: float) -> None:
        heapq.heappush(self._ready, (at_s, next(self._order), request))


def _first_s(tree: list[TraceRequest]) -> float:
    return min(request.time_s for request in tree)
