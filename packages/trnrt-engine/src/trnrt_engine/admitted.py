"""Sequences that were admitted: their prompts are computed, then they take a seat and decode.

There are more places than seats. Who has a first token and no seat waits for one, in the order of
admission.
"""

from __future__ import annotations

from collections import Counter

from trnrt_engine.errors import IntegrityError
from trnrt_engine.fair_share import FairShare
from trnrt_engine.request import Request, RequestStatus


class Admitted:
    """Requests that run, which of them have a seat, and what their tenants are promised.

    Args:
        num_seats: sequences decoded at once.
        num_places: sequences admitted at once; at least the seats.

    Attributes:
        running: in order of admission.
    """

    def __init__(self, shares: FairShare, *, num_seats: int, num_places: int) -> None:
        self.running: list[Request] = []
        self._shares = shares
        self._num_seats = num_seats
        self._num_places = num_places
        self._seats: dict[Request, None] = {}

    def num_free_places(self, *, num_coming: int) -> int:
        """Count the places left beside those whose room is being filled again."""
        return self._num_places - len(self.running) - num_coming

    def has_seat_for(self, request: Request, *, num_coming: int) -> bool:
        """Say whether a request that was preempted has a seat when it comes back.

        Without one it would hold its room for nothing. Others need none to begin.
        """
        is_back = request.status is RequestStatus.PREEMPTED
        return not is_back or len(self.running) + num_coming < self._num_seats

    @property
    def has_free_seat(self) -> bool:
        """Whether one more could decode."""
        return len(self._seats) < self._num_seats

    def enter(self, request: Request) -> None:
        """Give a place to a request that was started."""
        self.running.append(request)
        self._shares.promise(request.tenant, request.num_prefill_tokens)

    def leave(self, request: Request) -> None:
        """Take back a request's place and seat; what is left of its prompt is not computed."""
        self.running.remove(request)
        self._seats.pop(request, None)
        self._shares.promise(request.tenant, -request.num_prefill_tokens)

    def prefilling(self) -> list[Request]:
        """Return those whose prompt is not planned to its end."""
        return [request for request in self.running if request.can_prefill]

    def decoding(self) -> list[Request]:
        """Give free seats to those that wait for one, and return who can decode now."""
        for request in self.running:
            if len(self._seats) == self._num_seats:
                break
            if request.can_decode:
                self._seats[request] = None
        return [request for request in self._seats if request.can_decode]

    def check_integrity(self) -> None:
        """Prove that places, seats and promises add up.

        Raises:
            IntegrityError: they do not.
        """
        promised: Counter[str] = Counter()
        for request in self.running:
            if request.status is not RequestStatus.RUNNING:
                raise IntegrityError(f"a running request is {request.status}")
            promised[request.tenant] += request.num_prefill_tokens
        if len(self.running) > self._num_places:
            raise IntegrityError(f"{len(self.running)} requests in {self._num_places} places")
        if len(self._seats) > self._num_seats or not self._seats.keys() <= set(self.running):
            raise IntegrityError("a seat is taken twice, or by a request that does not run")
        if +promised != +Counter(self._shares.promised()):
            raise IntegrityError("what tenants are promised is not what their prompts lack")
