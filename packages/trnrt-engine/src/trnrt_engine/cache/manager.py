"""What each sequence holds of the caches.

The scheduler asks here for room and never sees a pool. This is where a prefix match would
hand a sequence its first pages, and where a tier below the device would be consulted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from trnrt_engine.cache.pages import PagePool
from trnrt_engine.cache.states import StateSlots
from trnrt_engine.errors import IntegrityError


@dataclass(slots=True, eq=False)
class SequenceCache:
    """The part of the caches one sequence owns.

    Fields:
        state_slot: id of its state slot.
        page_ids: its block table; page i holds positions [i * page_size, (i + 1) * page_size).
        num_reserved_pages: pages still promised to it.
    """

    state_slot: int
    page_ids: list[int] = field(default_factory=list)
    num_reserved_pages: int = 0


class CacheManager:
    """Give sequences room, let them grow into it, take it back."""

    def __init__(
        self, *, num_pages: int, page_size: int, num_state_slots: int, num_scratch: int
    ) -> None:
        self.page_size = page_size
        self._pages = PagePool(num_pages, first_id=num_scratch)
        self._states = StateSlots(num_state_slots, first_id=num_scratch)

    @property
    def num_free_pages(self) -> int:
        """Pages that hold no tokens."""
        return self._pages.num_free

    @property
    def num_pages(self) -> int:
        """Pages in all, scratch not counted."""
        return self._pages.num_pages

    @property
    def num_free_state_slots(self) -> int:
        """State slots nobody holds."""
        return self._states.num_free

    @property
    def num_state_slots(self) -> int:
        """State slots in all, scratch not counted."""
        return self._states.num_slots

    def pages_for(self, num_tokens: int) -> int:
        """Count the pages that hold `num_tokens` tokens."""
        return -(-num_tokens // self.page_size)

    def admit(self, max_tokens: int) -> SequenceCache | None:
        """Reserve all a sequence of at most `max_tokens` cached tokens can ever need.

        Returns:
            What it owns: a slot, and no page yet; None when there is no room now.
        """
        num_pages = self.pages_for(max_tokens)
        if not self._pages.can_reserve(num_pages):
            return None
        slot = self._states.allocate()
        if slot is None:
            return None
        self._pages.reserve(num_pages)
        return SequenceCache(state_slot=slot, num_reserved_pages=num_pages)

    def grow(self, cache: SequenceCache, num_tokens: int) -> None:
        """Extend the block table so that it holds `num_tokens` tokens.

        Raises:
            IntegrityError: more than was reserved.
        """
        missing = self.pages_for(num_tokens) - len(cache.page_ids)
        if missing > cache.num_reserved_pages:
            raise IntegrityError(
                f"sequence needs {missing} pages and has {cache.num_reserved_pages} reserved"
            )
        for _ in range(missing):
            cache.page_ids.append(self._pages.allocate_reserved())
            cache.num_reserved_pages -= 1

    def release(self, cache: SequenceCache) -> None:
        """Take back pages, reservation and slot of one sequence; `cache` is empty after."""
        self._pages.free(cache.page_ids)
        self._pages.unreserve(cache.num_reserved_pages)
        self._states.free(cache.state_slot)
        cache.page_ids = []
        cache.num_reserved_pages = 0

    def check_integrity(self, holders: Iterable[SequenceCache]) -> None:
        """Prove that `holders` hold exactly what the pools say is in use.

        Raises:
            IntegrityError: a page or a slot is lost, held twice, or wrongly promised.
        """
        caches = list(holders)
        self._pages.check_integrity([page for cache in caches for page in cache.page_ids])
        self._states.check_integrity([cache.state_slot for cache in caches])
        reserved = sum(cache.num_reserved_pages for cache in caches)
        if reserved != self._pages.num_reserved:
            raise IntegrityError(
                f"sequences count on {reserved} reserved pages, the pool on "
                f"{self._pages.num_reserved}"
            )
