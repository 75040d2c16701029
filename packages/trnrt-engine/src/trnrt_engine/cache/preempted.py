"""Sequences whose room was taken away: what becomes of them, and how they get it back."""

from __future__ import annotations

from collections.abc import Callable

from trnrt_engine.cache.holding import Holding
from trnrt_engine.cache.live import LiveStatus
from trnrt_engine.cache.prefix_key import PrefixKey
from trnrt_engine.cache.report import SwapCounters
from trnrt_engine.cache.room import Room
from trnrt_engine.cache.sequence import Admission, SequenceCache
from trnrt_engine.cache.swap import Swap, SwapSettings


class Preempted:
    """Live bundles on behalf of the cache manager; `ask.live` says who has one.

    Args:
        settings: of the swap space; None = all compute again.
        release: gives back what a sequence held.

    Attributes:
        swap: None where there is no swap space.
    """

    def __init__(
        self,
        settings: SwapSettings | None,
        room: Room,
        holding: Holding,
        *,
        cache_id: bytes,
        clock: Callable[[], float],
        release: Callable[[SequenceCache], None],
    ) -> None:
        self.counters = SwapCounters()
        self.swap: Swap | None = None
        self._room = room
        self._holding = holding
        if settings is not None and settings.budget_bytes:
            self.swap = Swap(
                settings, cache_id=cache_id, counters=self.counters, clock=clock, release=release
            )

    @property
    def is_copying(self) -> bool:
        """Copies are under way."""
        return self.swap is not None and self.swap.is_copying

    @property
    def is_room_coming(self) -> bool:
        """A sequence gives its pages back as soon as they are copied."""
        return self.swap is not None and self.swap.is_saving

    @property
    def num_resuming(self) -> int:
        """Sequences that have their room again and do not yet run."""
        return self.swap.num_loading if self.swap is not None else 0

    def save(self, cache: SequenceCache, ask: Admission, key: PrefixKey, *, position: int) -> bool:
        """Begin to save what a sequence needs to go on; False if it computes again."""
        # Before its first step a hit is not copied: there is nothing to save.
        if self.swap is not None and position and cache.restore is None:
            ask.live = self.swap.save(
                cache,
                key,
                position=position,
                decode_from=min(position, len(ask.token_ids)),
                nodes=self._holding.shared_pages(cache),
            )
        is_saved = ask.live is not None
        self.counters.preemptions["swap" if is_saved else "recompute"] += 1
        return is_saved

    def is_away(self, ask: Admission) -> bool:
        """A sequence has a live bundle that is not lost."""
        return ask.live is not None and ask.live.status is not LiveStatus.LOST

    def is_saved(self, ask: Admission) -> bool:
        """It waits for room."""
        return ask.live is not None and ask.live.status is LiveStatus.SAVED

    def is_loading(self, ask: Admission) -> bool:
        """It has its room and waits for its bytes."""
        return ask.live is not None and ask.live.status is LiveStatus.LOADING

    def begin_return(self, ask: Admission) -> bool:
        """Give a saved sequence room and begin to fill it; False when there is no room.

        One that cannot be restored any more is lost.
        """
        live, swap = ask.live, self.swap
        if live is None or swap is None:
            return True
        kept = live.kept_nodes()
        if len(kept) < live.first_saved:
            swap.lose(live, "its first pages were evicted")
            return True
        cache = SequenceCache(state_slot=-1, control=ask.control)
        self._holding.hold_again(cache, live, kept)
        if not self._room.take(cache, ask.max_tokens):
            self._holding.let_go(cache)
            return False
        self._room.grow(cache, live.position)
        swap.load(live, cache, first=len(kept))
        return True

    def take_loaded(self, ask: Admission) -> SequenceCache | None:
        """Return the room of a sequence when all of its bytes are back."""
        if ask.live is None or self.swap is None:
            return None
        cache = self.swap.take_loaded(ask.live)
        if cache is not None:
            ask.live = None
        return cache

    def forget(self, ask: Admission) -> None:
        """Drop the bundle of a sequence that has ended or computes again."""
        if self.swap is not None and ask.live is not None:
            self.swap.drop(ask.live)
        ask.live = None
