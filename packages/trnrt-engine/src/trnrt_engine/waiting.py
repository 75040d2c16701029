"""Who is admitted next.

The lowest priority number first; of one priority the tenant with the smallest share; of one tenant
who came first. A request's priority improves by one for every `AGING_S` it waits: every eighth
admission goes to the request that is first by that, whoever its tenant is, so nobody waits for
ever behind better priorities or behind ever new tenants. Since all age alike, this order never
changes while requests wait.

Who was next and found no room stays next, unless a better priority comes: a large request is not
overtaken by smaller ones for ever.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

from trnrt_engine.fair_share import FairShare
from trnrt_engine.request import Request

AGING_S = 10.0
MAX_AGING_LEVELS = 60  # priorities beyond count as this: nobody is ten minutes behind or ahead
AGED_TURN = 8  # every so many admissions


def aged_arrival_s(request: Request) -> float:
    """Return when a request of priority 0 would have come to be as urgent as this one."""
    levels = min(max(request.priority, -MAX_AGING_LEVELS), MAX_AGING_LEVELS)
    return request.arrival_s + levels * AGING_S


@dataclass(slots=True)
class _Class:
    """Requests of one priority: those that go first, and the others by tenant, as they came."""

    front: dict[Request, None] = field(default_factory=dict)
    tenants: dict[str, dict[Request, None]] = field(default_factory=dict)


class WaitingQueue:
    """Requests that wait, in the order in which they are admitted."""

    def __init__(self, shares: FairShare) -> None:
        self._shares = shares
        self._ages: dict[Request, float] = {}
        self._classes: dict[int, _Class] = {}
        self._aside: dict[Request, None] = {}
        self._head: Request | None = None
        self._is_aged_turn = False
        self._num_taken = 0

    def __len__(self) -> int:
        return len(self._ages) + len(self._aside)

    def __iter__(self) -> Iterator[Request]:
        yield from self._aside
        yield from self._ages

    def __contains__(self, request: Request) -> bool:
        return request in self._ages or request in self._aside

    @property
    def aside(self) -> list[Request]:
        """Those that let others pass."""
        return list(self._aside)

    def add(self, request: Request) -> None:
        """Put a new request behind those of its priority and tenant."""
        if self._is_before_head(request.priority + 1):
            self._head = None
        self._place(request).tenants.setdefault(request.tenant, {})[request] = None

    def put_back(self, request: Request) -> None:
        """Put a request that was at its turn before in front of its priority."""
        self._aside.pop(request, None)
        if self._is_before_head(request.priority):
            self._head = None
        self._place(request).front[request] = None

    def return_to_front(self, request: Request) -> None:
        """Put a preempted request before all of its priority, also those preempted before it.

        Who is preempted later has the greater claim.
        """
        self.put_back(request)
        place = self._classes[request.priority]
        place.front = {request: None, **place.front}

    def set_aside(self, request: Request) -> None:
        """Let others pass a request that waits for something else, until it is put back."""
        self._forget(request)
        self._aside[request] = None

    def take(self, request: Request) -> None:
        """Remove a request because it is admitted: the next one's turn."""
        self._forget(request)
        self._num_taken += 1

    def remove(self, request: Request) -> None:
        """Remove a request that waits no more."""
        if request in self._aside:
            del self._aside[request]
        else:
            self._forget(request)

    def next(self) -> Request | None:
        """Return whose turn it is; None when nobody waits but those set aside."""
        if self._head is None and self._ages:
            self._is_aged_turn = self._num_taken % AGED_TURN == AGED_TURN - 1
            if self._is_aged_turn:
                self._head = min(self._ages, key=self._ages.__getitem__)
            else:
                self._head = self._first()
        return self._head

    def in_order(self) -> list[Request]:
        """List all in the order in which they would be admitted if nobody else came.

        The turns of the aged are left out, and of prompts all is counted that may be cached.
        """
        order = list(self._aside)
        for priority in sorted(self._classes):
            place = self._classes[priority]
            order += place.front
            queues = [
                (self._shares.charged(tenant), index, iter(requests))
                for index, (tenant, requests) in enumerate(place.tenants.items())
            ]
            heapq.heapify(queues)
            while queues:
                charged, index, requests = queues[0]
                request = next(requests, None)
                if request is None:
                    heapq.heappop(queues)
                    continue
                order.append(request)
                charged += request.num_prompt_tokens
                heapq.heapreplace(queues, (charged, index, requests))
        return order

    def _first(self) -> Request:
        place = self._classes[min(self._classes)]
        if place.front:
            return next(iter(place.front))
        return next(iter(place.tenants[self._shares.least_charged(place.tenants)]))

    def _is_before_head(self, priority: int) -> bool:
        """Say whether the head's priority is not better; a head by age gives way to nobody."""
        return self._head is not None and not self._is_aged_turn and priority <= self._head.priority

    def _place(self, request: Request) -> _Class:
        self._ages[request] = aged_arrival_s(request)
        return self._classes.setdefault(request.priority, _Class())

    def _forget(self, request: Request) -> None:
        del self._ages[request]
        place = self._classes[request.priority]
        if request in place.front:
            del place.front[request]
        else:
            requests = place.tenants[request.tenant]
            del requests[request]
            if not requests:
                del place.tenants[request.tenant]
        if not place.front and not place.tenants:
            del self._classes[request.priority]
        if request is self._head:
            self._head = None


class PrefillTurns:
    """Whose chunk is next among the admitted prompts.

    Of four chunks one goes by priority and share, one to who has waited longest, aged by priority,
    and two to the prompt with the least left: a short one does not wait behind a long one, which
    loses little.
    """

    def __init__(self, shares: FairShare) -> None:
        self._shares = shares
        self._num_chunks = 0

    def next(self, prefilling: list[Request]) -> Request:
        """Return whose turn it is of a list that is not empty; of equals, the first."""
        if self._num_chunks % 2:
            return min(prefilling, key=lambda r: r.num_prefill_tokens)
        if self._num_chunks % 4:
            return min(prefilling, key=aged_arrival_s)
        return min(prefilling, key=lambda r: (r.priority, self._shares.computed(r.tenant)))

    def count(self) -> None:
        """Note that a chunk was planned: the next one's turn."""
        self._num_chunks += 1
