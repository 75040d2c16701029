"""What each sequence holds of the caches.

The scheduler asks here for room and never sees a pool. Admission looks the prompt up in the prefix
cache and hands a sequence its first pages; what its steps computed is published, and outlives it.
A tier below the device would be consulted where the lookup is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable

from trnrt_engine.api import CacheMode
from trnrt_engine.cache.bundles import Bundle
from trnrt_engine.cache.pages import PagePool
from trnrt_engine.cache.pins import SessionPins
from trnrt_engine.cache.prefix_cache import Lookup, PrefixCache
from trnrt_engine.cache.prefix_key import PrefixKey
from trnrt_engine.cache.publisher import Publisher, wanted_bundles
from trnrt_engine.cache.radix import Match, Node
from trnrt_engine.cache.report import DEVICE, CacheCounters, MatchReport, Reason, TierCounters
from trnrt_engine.cache.sequence import Admission, Publication, SequenceCache
from trnrt_engine.cache.states import StateSlots
from trnrt_engine.cache.tiers import LowerTiers, Tiers
from trnrt_engine.errors import IntegrityError
from trnrt_engine.plan import Export, Restore
from trnrt_kernels.serving import GRID


class CacheManager:
    """Give sequences room, let them grow into it, keep what they computed, take it back.

    State slots lie in this order: scratch, one per sequence, one per bundle.

    Args:
        num_bundle_slots: slots for bundles; None = no prefix cache.
        cache_id: of this engine's numbers; 32 bytes where there are lower tiers.
        lower: tiers below the device; None = there are none.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if num_bundle_slots is not None and page_size % GRID:
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
        self._is_caching = num_bundle_slots is not None
        self._pins = SessionPins(self._prefix, num_pages=num_pages)
        self._publisher = Publisher(self._prefix, self._pins)
        self._num_sequences = 0
        self._num_returns = 0
        self.tiers: Tiers | None = None
        if lower is not None and lower.tiers and self._is_caching:
            self.tiers = Tiers(
                lower,
                self._prefix,
                self._pages,
                cache_id=cache_id,
                clock=clock,
                on_return=self._note_return,
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
    def is_copying(self) -> bool:
        """Copies to or from the tiers below are under way."""
        return self.tiers is not None and self.tiers.is_copying

    def pages_for(self, num_tokens: int) -> int:
        """Count the pages that hold `num_tokens` tokens."""
        return -(-num_tokens // self.page_size)

    def admit(self, ask: Admission) -> SequenceCache | None:
        """Reserve all a sequence can ever need, less what the prefix cache has of it.

        Returns:
            What it owns: a slot, and the pages of its hit; None when there is no room now, or
            when it waits for a load.
        """
        if ask.refused_at == self._num_returns or not self._states.num_free:
            return None
        if self.tiers is not None and self.tiers.is_loading(ask):
            return None
        self._pins.release_dead()
        if self._begin_load(ask):
            return None
        cache = self._try_admit(ask)
        if cache is None and not self._num_sequences:
            # Nobody will give anything back, but copies. What a hit is copied from takes room
            # beside the copy.
            if self.tiers is not None:
                self.tiers.shed()
                cache = self._try_admit(ask)
            if cache is None and self.is_copying:
                return None
            cache = cache or self._try_admit(ask, is_cold=True)
            while cache is None and self._pins.release_oldest():
                cache = self._try_admit(ask, is_cold=True)
        if cache is None:
            ask.refused_at = self._num_returns
        return cache

    def is_loading(self, ask: Admission) -> bool:
        """A sequence waits for a load; others may be admitted before it."""
        return self.tiers is not None and self.tiers.is_loading(ask)

    def withdraw(self, ask: Admission) -> None:
        """Let a sequence that has not been admitted wait for no load."""
        if self.tiers is not None:
            self.tiers.leave(ask)

    def poll(self) -> None:
        """Take in the copies that have ended and start the next."""
        if self.tiers is not None:
            self.tiers.poll()

    def wait_for_copies(self, timeout_s: float) -> None:
        """Wait until a copy has ended, but not longer; at once where there are none."""
        if self.tiers is not None and self.tiers.is_copying:
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

    def _begin_load(self, ask: Admission) -> bool:
        if self.tiers is None or ask.load is not None or ask.is_probed:
            return False
        found = self._look_up(ask)
        return found is not None and self.tiers.begin_load(ask, found)

    def _try_admit(self, ask: Admission, *, is_cold: bool = False) -> SequenceCache | None:
        found = self._look_up(ask)
        if found is not None and is_cold:
            found = Lookup(Match(None), None, Reason.NO_ROOM)
        cache = SequenceCache(state_slot=-1, control=ask.control)
        if found is not None:
            self._hold(cache, ask, found)
        missing = self.pages_for(ask.max_tokens) - len(cache.page_ids)
        if missing > self._pages.num_available(self._prefix.num_evictable):
            self._let_go(cache)
            return None
        slot = self._states.allocate()
        if slot is None:
            raise IntegrityError("no state slot is free")
        cache.state_slot = slot
        self._pages.reserve(missing, num_evictable=self._prefix.num_evictable)
        cache.num_reserved_pages = missing
        self._start(cache, found)
        self.withdraw(ask)
        self._num_sequences += 1
        return cache

    def _look_up(self, ask: Admission) -> Lookup | None:
        if not self._is_caching or ask.control.mode is CacheMode.OFF:
            return None
        if ask.key is None:
            ask.key = PrefixKey(ask.token_ids, salt=ask.salt, page_size=self.page_size)
        return self._prefix.lookup(ask.key)

    def _hold(self, cache: SequenceCache, ask: Admission, found: Lookup) -> None:
        """Lock what a sequence reads and where it publishes, and give it its first pages."""
        bundle, match, key = found.bundle, found.match, ask.key
        if key is None:
            raise IntegrityError("a prompt was looked up without a key")
        position = bundle.position if bundle is not None else 0
        path = match.path[: position // self.page_size]
        cache.num_cached_tokens = position
        cache.report = self._report(ask, found)
        cache.page_ids = [_page_of(node) for node in path]
        top = path[-1] if path else None
        if ask.control.mode is CacheMode.WRITE:
            top = top or self._prefix.tree.root(key)
            wanted = wanted_bundles(key, ask.marks, cache.report)
            cache.publication = Publication(key, top, len(path), position, wanted, deepest=bundle)
        else:
            cache.shared = top
        if top is not None:
            self._prefix.lock(top)
        if bundle is not None:
            if position % self.page_size:
                cache.source = bundle.node
                self._prefix.lock(bundle.node)
            cache.hit, cache.holds_hit = bundle, True
            self._prefix.lock_bundle(bundle)

    def _report(self, ask: Admission, found: Lookup) -> MatchReport:
        bundle, reason, tier = found.bundle, found.reason, ""
        if bundle is not None:
            tier = DEVICE if self.tiers is None else self.tiers.tier_of(ask, bundle)
        if tier in ("", DEVICE):
            reason = ask.load_reason or reason
        position = bundle.position if bundle is not None else 0
        return MatchReport(max(found.match.kv_depth, position), position, reason, tier)

    def _start(self, cache: SequenceCache, found: Lookup | None) -> None:
        """Settle a hit: what is copied before the first step, what was used, what is counted."""
        counters = self._prefix.counters
        counters.lookups[cache.report.reason] += 1
        counters.hit_tokens += cache.num_cached_tokens
        counters.tier_hit_tokens[cache.report.tier] += cache.num_cached_tokens
        if found is None or found.bundle is None:
            return
        copies: tuple[tuple[int, int], ...] = ()
        if cache.source is not None:
            self.grow(cache, cache.num_cached_tokens)
            copies = ((_page_of(cache.source), cache.page_ids[-1]),)
        cache.restore = Restore(found.bundle.slot, copies)
        self._prefix.use(found.bundle)
        if self.tiers is not None and cache.control.mode is CacheMode.WRITE:
            self.tiers.write(found.bundle)

    def grow(self, cache: SequenceCache, num_tokens: int) -> None:
        """Extend the block table so that it holds `num_tokens` tokens, evicting if need be.

        Raises:
            IntegrityError: more than was reserved.
        """
        missing = self.pages_for(num_tokens) - len(cache.page_ids)
        if missing > cache.num_reserved_pages:
            raise IntegrityError(
                f"sequence needs {missing} pages and has {cache.num_reserved_pages} reserved"
            )
        for _ in range(missing):
            if not self._pages.num_free:
                self._prefix.evict_page()
            page_id = self._pages.allocate_reserved()
            cache.page_ids.append(page_id)
            cache.own_pages.add(page_id)
            cache.num_reserved_pages -= 1

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
        self._finish_restore(cache)
        added = self._publisher.publish(cache, num_tokens)
        self._write(added)
        return added

    def discard(self, cache: SequenceCache) -> None:
        """Take back what a sequence published, and the bundle it started from.

        Called when its numbers turned out not to be finite. What others built upon it goes, too.
        """
        if self.tiers is not None:
            self._discard_below(self.tiers, cache)
        self._publisher.discard(cache)

    def release(self, cache: SequenceCache) -> None:
        """Take back pages, reservation and slot of one sequence; `cache` is empty after."""
        publication = cache.publication
        num_before = len(publication.added) if publication is not None else 0
        self._publisher.close(cache)
        if publication is not None:
            self._write(publication.added[num_before:])
        self._let_go(cache)
        self._pages.free(list(cache.own_pages))
        self._pages.unreserve(cache.num_reserved_pages)
        self._states.free(cache.state_slot)
        cache.page_ids = []
        cache.own_pages = set()
        cache.num_reserved_pages = 0
        self._num_sequences -= 1
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
        caches, tiers = list(holders), self.tiers
        own = [page for cache in caches for page in cache.own_pages]
        own += tiers.pages() if tiers is not None else []
        self._pages.check_integrity(
            own + self._prefix.pages(), num_evictable=self._prefix.num_evictable
        )
        self._states.check_integrity([cache.state_slot for cache in caches])
        reserved = sum(cache.num_reserved_pages for cache in caches)
        reserved += tiers.num_reserved if tiers is not None else 0
        if reserved != self._pages.num_reserved:
            raise IntegrityError(
                f"sequences count on {reserved} reserved pages, the pool on "
                f"{self._pages.num_reserved}"
            )
        locks, held = self._pins.locks()
        locks.update(node for cache in caches for node in _locked_by(cache))
        held.update(cache.hit for cache in caches if cache.hit is not None and cache.holds_hit)
        exports = [
            slot
            for cache in caches
            if cache.publication is not None
            for slot, _ in cache.publication.exports.values()
        ]
        if tiers is not None:
            copied_nodes, copied_bundles = tiers.locks()
            locks.update(copied_nodes)
            held.update(copied_bundles)
            exports += tiers.slots()
        self._prefix.check_integrity(locks, held, exports)

    def _note_return(self) -> None:
        self._num_returns += 1

    def _write(self, bundles: Iterable[Bundle]) -> None:
        if self.tiers is not None:
            for bundle in bundles:
                self.tiers.write(bundle)

    def _discard_below(self, tiers: Tiers, cache: SequenceCache) -> None:
        """Take what `discard` takes back out of the tiers below, too."""
        bundles = [cache.hit] if cache.hit is not None else []
        own_from = sys.maxsize
        if cache.publication is not None:
            deepest, first = cache.publication.deepest, cache.publication.first_added
            bundles += [*cache.publication.added, *([deepest] if deepest is not None else [])]
            own_from = first.start if first is not None else own_from
        tiers.discard(bundles, from_position=own_from)

    def _finish_restore(self, cache: SequenceCache) -> None:
        cache.restore = None
        if cache.hit is not None and cache.holds_hit:
            self._prefix.unlock_bundle(cache.hit)
            cache.holds_hit = False
        if cache.source is not None:
            self._prefix.unlock(cache.source)
            cache.source = None
            self._num_returns += 1

    def _let_go(self, cache: SequenceCache) -> None:
        """Unlock all a sequence holds."""
        self._finish_restore(cache)
        if cache.shared is not None:
            self._prefix.unlock(cache.shared)
            cache.shared = None
        if cache.publication is not None:
            self._prefix.unlock(cache.publication.node)
            cache.publication = None


def _page_of(node: Node) -> int:
    if node.page_id is None:
        raise IntegrityError(f"a node at {node.start} that is hit has no page")
    return node.page_id


def _locked_by(cache: SequenceCache) -> Iterable[Node]:
    if cache.shared is not None:
        yield cache.shared
    if cache.source is not None:
        yield cache.source
    if cache.publication is not None:
        yield cache.publication.node
