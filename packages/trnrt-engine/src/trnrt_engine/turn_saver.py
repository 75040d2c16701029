"""Requests that have ended and whose last state is kept for the next turn of their session."""

from __future__ import annotations

from collections.abc import Iterator

from trnrt_engine.cache.manager import CacheManager
from trnrt_engine.cache.turn_ends import KeptTurn
from trnrt_engine.plan import Save
from trnrt_engine.request import Request


class TurnSaver:
    """Hand copies to the next plan; who waits for one holds its room until that plan has landed."""

    def __init__(self, cache: CacheManager) -> None:
        self._cache = cache
        self._waiting: list[tuple[KeptTurn, Request]] = []
        self._flying: dict[int, list[tuple[KeptTurn, Request]]] = {}

    @property
    def is_waiting(self) -> bool:
        """Some copies are in no plan yet."""
        return bool(self._waiting)

    def offer(self, request: Request) -> bool:
        """Keep the end of a request if it is worth it; True if its room must wait for the copy."""
        if request.cache is None or not request.is_whole:
            return False
        key = request.key(page_size=self._cache.page_size)
        turn = self._cache.keep_turn(request.cache, key)
        if turn is not None:
            self._waiting.append((turn, request))
        return turn is not None

    def take(self, step_id: int) -> tuple[Save, ...]:
        """Hand out the copies that wait, to be executed by a step."""
        if not self._waiting:
            return ()
        self._flying[step_id], self._waiting = self._waiting, []
        return tuple(turn.save for turn, _ in self._flying[step_id])

    def land(self, step_id: int, *, is_saved: bool) -> list[Request]:
        """Take in the end of a step and return the requests whose room is to be given back."""
        landed = self._flying.pop(step_id, [])
        for turn, _ in landed:
            self._cache.settle_turn(turn, is_saved=is_saved)
        return [request for _, request in landed]

    def holders(self) -> Iterator[Request]:
        """Yield the requests that hold room."""
        for _, request in self._waiting:
            yield request
        for turns in self._flying.values():
            for _, request in turns:
                yield request
