"""What each sequence holds of the caches.

The scheduler asks here for room and never sees a pool. Admission looks the prompt up in the prefix
cache and hands a sequence its first pages; what its steps computed is published, and outlives it.
A sequence that is preempted gives all of it back, and is admitted again from its live bundle.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from trnrt_engine.cache.bundles import Bundle
from trnrt_engine.cache.hits import Hits
from trnrt_engine.cache.holding import Holding, locks_of
from trnrt_engine.cache.pages import PagePool
from trnrt_engine.cache.pins import SessionPins
from trnrt_engine.cache.preempted import Preempted
from trnrt_engine.cache.prefix_cache import PrefixCache
from trnrt_engine.cache.prefix_key import PrefixKey
from trnrt_engine.cache.publisher import Publisher
from trnrt_engine.cache.report import (
    CacheCounters,
    SwapCounters,
    TierCounters,
)
from trnrt_engine.cache.room import Room
from trnrt_engine.cache.sequence import Admission, SequenceCache
from trnrt_engine.cache.states import StateSlots
from trnrt_engine.cache.swap import Swap, SwapSettings
from trnrt_engine.cache.tiers import LowerTiers, Tiers
from trnrt_engine.cache.turn_ends import KeptTurn, TurnEnds
from trnrt_engine.plan import Export
from trnrt_kernels.serving import GRID


class CacheManager:
    """Give sequences room, let them grow into it, keep what they computed, take it back.

    State slots lie in this order: scratch, one per sequence, one per bundle.

    Args:
        num_bundle_slots: slots for bundles; None = no prefix cache.
        cache_id: of this engine's numbers; 32 bytes where there are lower tiers.
        lower: tiers below the device; None = there are none.
        swap: where preempted sequences go; None = they compute again.
        keeps_turns: the end of a session's turn is kept, its answer in decode form.
        clock: seconds, monotonic; for times to live.
    """

    def __init__(
        self,
        *,
        num_pages: int,
        page_size: int,
        num_state_slots: int,
        num_scratch: int,
        num_bundle_slots: int | None = None,
        cache_id: bytes = b"",
        lower: LowerTiers | None = None,
        swap: SwapSettings | None = None,
        keeps_turns: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        is_caching = num_bundle_slots is not None
        if is_caching and page_size % GRID:
            raise ValueError(f"page_size is {page_size}, must be a multiple of {GRID} to be cached")
        self.page_size = page_size
        self._pages = PagePool(num_pages, first_id=num_scratch)
        self._states = StateSlots(num_state_slots, first_id=num_scratch)
        self._prefix = PrefixCache(
            self._pages,
            StateSlots(num_bundle_slots or 0, first_id=num_scratch + num_state_slots),
            page_size=page_size,
            cache_id=cache_id,
            clock=clock,
        )
        self._room = Room(self._pages, self._states, self._prefix, page_size=page_size)
        self._holding = Holding(self._prefix)
        self._pins = SessionPins(self._prefix, num_pages=num_pages)
        self._publisher = Publisher(self._prefix, self._pins)
        self._num_returns = 0
        self.tiers: Tiers | None = None
        if lower is not None and lower.tiers and is_caching:
            self.tiers = Tiers(
                lower,
                self._prefix,
                self._pages,
                cache_id=cache_id,
                clock=clock,
                on_return=self._note_return,
            )
        self._turns = TurnEnds(self._prefix, self._room) if is_caching and keeps_turns else None
        self._hits = Hits(
            self._prefix,
            self._room,
            self._holding,
            self.tiers,
            self._turns,
            page_size=page_size,
            is_caching=is_caching,
        )
        self._away = Preempted(
            swap,
            self._room,
            self._holding,
            cache_id=cache_id,
            clock=clock,
            release=self.release,
        )

    @property
    def num_free_pages(self) -> int:
        """Pages that hold no tokens."""
        return self._pages.num_free

    @property
    def num_cached_pages(self) -> int:
        """Pages in the prefix cache nobody holds; they are given up when they are needed."""
        return self._prefix.num_evictable

    @property
    def num_pages(self) -> int:
        """Pages in all, scratch not counted."""
        return self._pages.num_pages

    @property
    def num_free_state_slots(self) -> int:
        """State slots that hold nothing, those of bundles included."""
        return self._states.num_free + self._prefix.num_free_slots

    @property
    def num_state_slots(self) -> int:
        """State slots in all, scratch not counted."""
        return self._states.num_slots + self._prefix.num_slots

    @property
    def num_bundles(self) -> int:
        """Positions in the prefix cache that can be hit."""
        return self._prefix.num_bundles

    @property
    def num_bundle_slots(self) -> int:
        """Bundles the device has room for."""
        return self._prefix.num_slots

    @property
    def counters(self) -> CacheCounters:
        """What the prefix cache counted."""
        return self._prefix.counters

    @property
    def tier_counters(self) -> TierCounters:
        """What the tiers below the device counted."""
        return self.tiers.counters if self.tiers is not None else TierCounters()

    @property
    def swap(self) -> Swap | None:
        """Where preempted sequences go; None = they compute again."""
        return self._away.swap

    @property
    def swap_counters(self) -> SwapCounters:
        """What preemption counted."""
        return self._away.counters

    @property
    def is_copying(self) -> bool:
        """Copies to or from the tiers below or host memory are under way."""
        return self._away.is_copying or (self.tiers is not None and self.tiers.is_copying)

    @property
    def is_room_coming(self) -> bool:
        """A preempted sequence gives its pages back as soon as they are copied."""
        return self._away.is_room_coming

    @property
    def num_resuming(self) -> int:
        """Preempted sequences that have their room again and are not yet admitted."""
        return self._away.num_resuming

    def pages_for(self, num_tokens: int) -> int:
        """Count the pages that hold `num_tokens` tokens."""
        return self._room.pages_for(num_tokens)

    def admit(self, ask: Admission) -> SequenceCache | None:
        """Give a sequence room for its prompt, less what the prefix cache has of it.

        Returns:
            What it owns: a slot, and the pages of its hit; None when there is no room now, or
            when it waits for a load.
        """
        if self._away.is_away(ask):
            return self._resume(ask)
        if ask.refused_at == self._num_returns or not self._states.num_free:
            return None
        if self.tiers is not None and self.tiers.is_loading(ask):
            return None
        self._pins.release_dead()
        if self._hits.begin_load(ask):
            return None
        cache = self._hits.admit(ask)
        if cache is None and not self._room.num_sequences:
            cache = self._admit_alone(ask)
        if cache is None:
            ask.refused_at = self._num_returns
        else:
            self.withdraw(ask)
        return cache

    def make_room(self) -> bool:
        """Give up some of what is kept for later, for a sequence that is alone and finds no page.

        Returns:
            False when nothing is left to give up, or copies must end first.
        """
        before = self._room.num_available
        if self.tiers is not None:
            self.tiers.shed()
        if self._room.num_available > before:
            return True
        return not self.is_copying and self._pins.release_oldest()

    def preempt(self, cache: SequenceCache, ask: Admission, key: PrefixKey, position: int) -> bool:
        """Take a sequence's room away; none of its steps may be in flight.

        Args:
            ask: of the sequence; it is admitted by it again, from where it was if that is saved.
            key: of its tokens, generated ones included.
            position: how many of them were computed; nothing is saved before the first step.

        Returns:
            Whether its live bundle is saved; if not, it computes again.
        """
        self._publish_rest(cache)
        if self._away.save(cache, ask, key, position=position):
            return True
        self.release(cache)
        return False

    def take_loaded(self, ask: Admission) -> SequenceCache | None:
        """Return the room of a preempted sequence when all of its bytes are back."""
        return self._away.take_loaded(ask)

    def count_resume(self, cache: SequenceCache) -> None:
        """Count a preempted sequence that goes on."""
        self.swap_counters.resumes["swap" if cache.is_resumed else "recompute"] += 1

    def is_loading(self, ask: Admission) -> bool:
        """A sequence waits for a load; others may be admitted before it."""
        return self._away.is_loading(ask) or (self.tiers is not None and self.tiers.is_loading(ask))

    def withdraw(self, ask: Admission) -> None:
        """Let a sequence that is not admitted wait for no load, and forget its live bundle."""
        if self.tiers is not None:
            self.tiers.leave(ask)
        self._away.forget(ask)

    def poll(self) -> None:
        """Take in the copies that have ended and start the next."""
        if self.tiers is not None:
            self.tiers.poll()
        if self.swap is not None:
            self.swap.poll()

    def wait_for_copies(self, timeout_s: float) -> None:
        """Wait until a copy has ended, but not longer; at once where there are none."""
        if self.swap is not None and self.swap.is_copying:
            self.swap.wait(timeout_s)
        elif self.tiers is not None and self.tiers.is_copying:
            self.tiers.wait(timeout_s)

    def reset_counters(self) -> None:
        """Count from zero again."""
        self._prefix.counters.reset()
        if self.tiers is not None:
            self.tiers.counters.reset()

    def close(self) -> None:
        """End the copies and leave the tiers below; nothing may be asked after."""
        if self.tiers is not None:
            self.tiers.close()
        if self.swap is not None:
            self.swap.close()

    def _admit_alone(self, ask: Admission) -> SequenceCache | None:
        """Admit a sequence when no other will give anything back, but copies.

        What a hit is copied from takes room beside the copy: without a hit there is more.
        """
        cache = None
        if self.tiers is not None:
            self.tiers.shed()
            cache = self._hits.admit(ask)
        if cache is None and self.is_copying:
            return None
        cache = cache or self._hits.admit(ask, is_cold=True)
        while cache is None and self._pins.release_oldest():
            cache = self._hits.admit(ask, is_cold=True)
        return cache

    def _resume(self, ask: Admission) -> SequenceCache | None:
        """Bring a preempted sequence back: give it room, then its bytes, then to the scheduler."""
        if not self._away.is_saved(ask):
            return self._away.take_loaded(ask)
        if ask.refused_at == self._num_returns:
            return None
        while not self._away.begin_return(ask):
            if self._room.num_sequences or not self.make_room():
                ask.refused_at = self._num_returns
                return None
        return None

    def promise(self, cache: SequenceCache, num_tokens: int) -> bool:
        """Keep pages for a sequence, so that it can grow to `num_tokens` tokens; False if none."""
        return self._room.promise(cache, num_tokens)

    def grow(self, cache: SequenceCache, num_tokens: int) -> bool:
        """Extend the block table so that it holds `num_tokens` tokens, evicting if need be.

        Returns:
            False when more than was promised is needed and it is not there; nothing was taken.
        """
        return self._room.grow(cache, num_tokens)

    def plan_exports(self, cache: SequenceCache, start: int, end: int) -> tuple[Export, ...]:
        """Choose the bundles a chunk of positions [start, end) leaves, and take slots for them."""
        return self._publisher.plan_exports(cache, start, end)

    def publish(self, cache: SequenceCache, num_tokens: int) -> list[Bundle]:
        """Put what a chunk computed into the tree; its step, and all before it, succeeded.

        Args:
            num_tokens: prompt tokens computed so far.

        Returns:
            The bundles that can be hit from now on.
        """
        self._num_returns += self._holding.finish_restore(cache)
        added = self._publisher.publish(cache, num_tokens)
        self._write(added)
        return added

    def discard(self, cache: SequenceCache) -> None:
        """Take back what a sequence published, and the bundle it started from.

        Called when its numbers turned out not to be finite. What others built upon it goes, too.
        """
        if self.tiers is not None:
            self.tiers.discard_of(cache)
        self._publisher.discard(cache)

    def release(self, cache: SequenceCache) -> None:
        """Take back pages, promise and slot of one sequence; `cache` is empty after."""
        self._publish_rest(cache)
        self._holding.let_go(cache)
        self._room.give_back(cache)
        self._num_returns += 1

    def keep_turn(self, cache: SequenceCache, key: PrefixKey) -> KeptTurn | None:
        """Keep the end of a session's turn; all its steps have landed and it will not go on.

        Args:
            key: of all tokens that were computed, generated ones included.

        Returns:
            What is to be copied before `cache` is released; None when nothing is kept.
        """
        return self._turns.keep(cache, key) if self._turns is not None else None

    def settle_turn(self, turn: KeptTurn, *, is_saved: bool) -> None:
        """Take in the end of a turn's copy."""
        if self._turns is not None:
            self._turns.settle(turn, is_saved=is_saved)
        self._num_returns += 1

    def flush(self, salt: str | None = None) -> None:
        """Forget what is cached under a salt, or everything, in all tiers; pins of it end."""
        if self.tiers is not None:
            self.tiers.flush(salt)
        self.flush_device(salt)

    def flush_device(self, salt: str | None = None) -> None:
        """Forget on the device only; the tiers below keep what they have."""
        self._prefix.flush(salt)
        self._pins.release_dead()
        self._num_returns += 1

    def blank_free(self, count: int) -> None:
        """Zero the pages and bundle slots that are given out next; for proofs of what is loaded."""
        if self.tiers is not None:
            self.tiers.blank(self._pages.next_free(count), self._prefix.next_free_slots(count))

    def release_session(self, session_id: str) -> bool:
        """Let go of what a session pinned; False if it pinned nothing."""
        self._num_returns += 1
        return self._pins.release(session_id)

    def check_integrity(self, holders: Iterable[SequenceCache]) -> None:
        """Prove that `holders`, the tree and the pools add up.

        Every page is free, one node's, or one sequence's own; every bundle slot is free, one
        bundle's, or one export's; every lock is somebody's.

        Raises:
            IntegrityError: a page, a slot or a lock is lost, held twice, or wrongly promised.
        """
        caches, others = list(holders), [self._pins.locks()]
        pages, slots, num_reserved = self._prefix.pages(), [], 0
        if self.swap is not None:
            caches += self.swap.holders()
            self.swap.check_integrity()
        if self._turns is not None:
            others.append(self._turns.locks())
        if self.tiers is not None:
            others.append(self.tiers.locks())
            pages += self.tiers.pages()
            slots += self.tiers.slots()
            num_reserved += self.tiers.num_reserved
        self._room.check_integrity(caches, pages, num_reserved=num_reserved)
        locks, held, exports = locks_of(caches)
        for nodes, bundles in others:
            locks.update(nodes)
            held.update(bundles)
        self._prefix.check_integrity(locks, held, exports + slots)

    def _publish_rest(self, cache: SequenceCache) -> None:
        """Publish what a sequence computed of its last page; it publishes no more."""
        publication = cache.publication
        num_before = len(publication.added) if publication is not None else 0
        self._publisher.close(cache)
        if publication is not None:
            self._write(publication.added[num_before:])

    def _note_return(self) -> None:
        self._num_returns += 1

    def _write(self, bundles: Iterable[Bundle]) -> None:
        if self.tiers is not None:
            for bundle in bundles:
                self.tiers.write(bundle)
