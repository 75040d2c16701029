"""Pages and slots of sequences: promised at the start, taken when reached, given back whole.

A sequence is promised the pages of its prompt and a little more, so that it can make progress once
it is admitted. Beyond that it takes pages as long as there are any; whoever finds none waits until
others give some back.
"""

from __future__ import annotations

from collections.abc import Sequence

from trnrt_engine.cache.pages import PagePool
from trnrt_engine.cache.prefix_cache import PrefixCache
from trnrt_engine.cache.sequence import SequenceCache
from trnrt_engine.cache.states import StateSlots
from trnrt_engine.errors import IntegrityError


class Room:
    """The pools of pages and state slots, and what of the prefix cache can be evicted for them."""

    def __init__(
        self, pages: PagePool, states: StateSlots, prefix: PrefixCache, *, page_size: int
    ) -> None:
        self._pages = pages
        self._states = states
        self._prefix = prefix
        self._page_size = page_size

    @property
    def num_sequences(self) -> int:
        """Sequences that have a slot."""
        return self._states.num_slots - self._states.num_free

    @property
    def num_available(self) -> int:
        """Pages that are free, or could be evicted, and promised to nobody."""
        return self._pages.num_available(self._prefix.num_evictable)

    def pages_for(self, num_tokens: int) -> int:
        """Count the pages that hold `num_tokens` tokens."""
        return -(-num_tokens // self._page_size)

    def take(self, cache: SequenceCache, num_tokens: int) -> bool:
        """Promise a sequence what it lacks for `num_tokens` tokens, and give it a slot.

        Returns:
            False when there is no room; nothing was taken.
        """
        missing = max(self.pages_for(num_tokens) - len(cache.page_ids), 0)
        num_evictable = self._prefix.num_evictable
        if missing > self._pages.num_available(num_evictable):
            return False
        slot = self._states.allocate()
        if slot is None:
            return False
        cache.state_slot = slot
        self._pages.reserve(missing, num_evictable=num_evictable)
        cache.num_reserved_pages = missing
        return True

    def promise(self, cache: SequenceCache, num_tokens: int) -> bool:
        """Keep pages for a sequence, so that it can grow to `num_tokens` tokens; False if none."""
        missing = self.pages_for(num_tokens) - len(cache.page_ids)
        more = missing - cache.num_reserved_pages
        if more > 0:
            num_evictable = self._prefix.num_evictable
            if more > self._pages.num_available(num_evictable):
                return False
            self._pages.reserve(more, num_evictable=num_evictable)
            cache.num_reserved_pages = missing
        return True

    def grow(self, cache: SequenceCache, num_tokens: int) -> bool:
        """Extend a block table so that it holds `num_tokens` tokens, evicting if need be.

        Returns:
            False when more than was promised is needed and it is not there; nothing was taken.
        """
        if not self.promise(cache, num_tokens):
            return False
        for _ in range(self.pages_for(num_tokens) - len(cache.page_ids)):
            if not self._pages.num_free:
                self._prefix.evict_page()
            page_id = self._pages.allocate_reserved()
            cache.page_ids.append(page_id)
            cache.own_pages.add(page_id)
            cache.num_reserved_pages -= 1
        return True

    def take_page(self, cache: SequenceCache) -> bool:
        """Give a sequence one page more than it needs; False when there is none."""
        if not self.num_available:
            return False
        return self.grow(cache, (len(cache.page_ids) + 1) * self._page_size)

    def give_back(self, cache: SequenceCache) -> None:
        """Take back pages, promise and slot of one sequence; `cache` is empty after."""
        self._pages.free(list(cache.own_pages))
        self._pages.unreserve(cache.num_reserved_pages)
        self._states.free(cache.state_slot)
        cache.page_ids = []
        cache.own_pages = set()
        cache.num_reserved_pages = 0

    def check_integrity(
        self, caches: Sequence[SequenceCache], pages: Sequence[int], *, num_reserved: int
    ) -> None:
        """Prove that pages, promises and slots add up.

        Args:
            caches: what sequences hold.
            pages: those of others. num_reserved: what others are promised.

        Raises:
            IntegrityError: one is lost, held twice or wrongly promised.
        """
        self._states.check_integrity([cache.state_slot for cache in caches])
        own = [page for cache in caches for page in cache.own_pages]
        self._pages.check_integrity([*own, *pages], num_evictable=self._prefix.num_evictable)
        num_reserved += sum(cache.num_reserved_pages for cache in caches)
        if num_reserved != self._pages.num_reserved:
            raise IntegrityError(
                f"sequences count on {num_reserved} reserved pages, the pool on "
                f"{self._pages.num_reserved}"
            )
