"""Who gives way when pages are short, and how.

Sequences take pages as they grow. Who finds none waits while the request with the least claim is
preempted: it gives its room back, its live bundle goes to host memory, and it waits before all
others of its priority. Pages that come free go to those that found none before anybody is admitted
for them. So each page that is taken sends away one request at most, and who comes back has room to
go on: turns are taken, but not without progress.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from trnrt_engine.admitted import Admitted
from trnrt_engine.cache.manager import CacheManager
from trnrt_engine.request import Request, RequestStatus
from trnrt_engine.waiting import WaitingQueue

logger = logging.getLogger(__name__)


def by_claim(requests: Sequence[Request]) -> list[Request]:
    """Sort requests by their claim to pages: the best priority first, of one the oldest."""
    return sorted(requests, key=lambda request: (request.priority, request.arrival_s))


def choose_victim(running: Sequence[Request]) -> Request | None:
    """Choose the request with the least claim: of the lowest class the youngest.

    Returns:
        None when there is only one, when one gives way already, or when the one to choose has not
        had a step since it was admitted: it has the room for one.
    """
    if len(running) < 2 or any(request.is_leaving for request in running):
        return None
    victim = by_claim(running)[-1]
    return victim if victim.has_progressed else None


class Preemption:
    """Finds pages for those that decode.

    Args:
        admitted: who runs. waiting: where those go that are preempted.
    """

    def __init__(self, cache: CacheManager, admitted: Admitted, waiting: WaitingQueue) -> None:
        self._cache = cache
        self._admitted = admitted
        self._waiting = waiting
        self._short: list[Request] = []

    def serve_short(self) -> bool:
        """Promise pages to those that found none; True when nobody lacks one any more."""
        self._short = [
            request
            for request in self._short
            if request.can_decode
            and not self._cache.promise(request.room, request.num_computed_tokens + 1)
        ]
        return not self._short

    def with_pages(self, decoding: Sequence[Request]) -> list[Request]:
        """Return those that have a page for their next position, in the given order."""
        ready = set()
        for request in by_claim(decoding):
            while request.can_decode and request not in ready:
                if self._cache.grow(request.room, request.num_computed_tokens + 1):
                    ready.add(request)
                elif not self._find_room():
                    break
        self._short = [r for r in by_claim(decoding) if r.can_decode and r not in ready]
        return [request for request in decoding if request in ready]

    def preempt(self, request: Request) -> bool:
        """Preempt a request that runs, now or when its steps have landed.

        Returns:
            Whether its room is free already.
        """
        request.is_leaving = True
        return not request.num_steps_in_flight and not self._send_away(request)

    def preempt_landed(self) -> None:
        """Preempt those whose steps have landed meanwhile."""
        for request in list(self._admitted.running):
            if request.is_leaving and not request.num_steps_in_flight:
                self._send_away(request)

    def _find_room(self) -> bool:
        """Make room for a sequence that found no page; True when it is to look again at once."""
        running = self._admitted.running
        if self._cache.is_room_coming:
            return False
        victim = choose_victim(running)
        if victim is not None:
            return self.preempt(victim)
        if len(running) > 1:
            return False
        if self._cache.make_room():
            return True
        [alone] = running
        if not self._cache.is_copying and alone.has_progressed:
            # It holds pages beside equal ones of the tree; it does not when it starts again.
            self.preempt(alone)
        return False

    def _send_away(self, request: Request) -> bool:
        """Take a request's room and let it wait; True if its live bundle is saved."""
        room, key = request.room, request.key(page_size=self._cache.page_size)
        self._admitted.leave(request)
        request.leave()
        is_saved = self._cache.preempt(
            room, request.admission, key, position=request.num_computed_tokens
        )
        self._waiting.return_to_front(request)
        logger.info(
            "request preempted request=%s way=%s tokens=%d times=%d",
            *(request.request_id, "swap" if is_saved else "recompute"),
            *(request.num_computed_tokens, request.num_preemptions),
        )
        return is_saved


def may_wait(request: Request) -> bool:
    """Say whether a request is not admitted, for the first time or for now."""
    return request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
