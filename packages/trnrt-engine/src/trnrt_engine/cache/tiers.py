"""The tiers below the device: host memory, shared by the engines of a box, and disk.

Everything is asked for here and done by two threads, one that copies down and one that copies up,
so that a slow disk write does not delay a load. Nothing here waits; the owner polls between steps.
"""

from __future__ import annotations

import logging
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from trnrt_engine.cache.bundles import Bundle
from trnrt_engine.cache.bytestore import ByteStore
from trnrt_engine.cache.copies import Copies, CopyQueue
from trnrt_engine.cache.entries import (
    CACHE_ID_BYTES,
    DeviceBytes,
    EntryKind,
    entry_key,
    salt_suffix,
)
from trnrt_engine.cache.loadback import LATE_AFTER_S, MAX_LOADS, LoadBack, LoadStatus
from trnrt_engine.cache.pages import PagePool
from trnrt_engine.cache.prefix_cache import Lookup, PrefixCache
from trnrt_engine.cache.prefix_key import root_hash as root_hash_of
from trnrt_engine.cache.probe import deepest_states
from trnrt_engine.cache.radix import Node
from trnrt_engine.cache.report import DEVICE, DISK, HOST, Reason, TierCounters
from trnrt_engine.cache.sequence import Admission, SequenceCache
from trnrt_engine.cache.writethrough import Tier, WriteThrough

logger = logging.getLogger(__name__)

MAX_BYTES_IN_FLIGHT = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerTiers:
    """What a cache is given to keep bundles in beside the device.

    Fields:
        late_after_s: a load is given up after so long, and the time its bytes take.
        delay: called in the copy threads before each copy; for tests.
        make_copies: what copies, given most bytes in flight; None = a thread each way.
    """

    device: DeviceBytes
    host: ByteStore | None = None
    disk: ByteStore | None = None
    late_after_s: float = LATE_AFTER_S
    delay: Callable[[], None] | None = None
    make_copies: Callable[[int], Copies] | None = None

    def copies(self) -> Copies:
        """Make what moves the bytes one way."""
        if self.make_copies is not None:
            return self.make_copies(MAX_BYTES_IN_FLIGHT)
        return CopyQueue(max_bytes_in_flight=MAX_BYTES_IN_FLIGHT, delay=self.delay)

    @property
    def tiers(self) -> list[Tier]:
        """Those there are, the fastest first."""
        named = ((HOST, self.host), (DISK, self.disk))
        return [Tier(name, store) for name, store in named if store is not None]


class Tiers:
    """Bundles on their way down and up.

    Args:
        on_return: called when room or locks were given back.

    Attributes:
        tiers: the fastest first.
    """

    def __init__(
        self,
        lower: LowerTiers,
        prefix: PrefixCache,
        pool: PagePool,
        *,
        cache_id: bytes,
        clock: Callable[[], float],
        on_return: Callable[[], None],
    ) -> None:
        if len(cache_id) != CACHE_ID_BYTES:
            raise ValueError(f"cache_id has {len(cache_id)} bytes, must have {CACHE_ID_BYTES}")
        self.tiers = lower.tiers
        self._device = lower.device
        self._page_size = prefix.tree.page_size
        self.counters = TierCounters()
        self._cache_id = cache_id
        self._down = lower.copies()
        self._up = lower.copies()
        self._writes = WriteThrough(
            prefix,
            lower.device,
            self._down,
            self.tiers,
            cache_id=cache_id,
            counters=self.counters,
            on_return=on_return,
        )
        self._loads = LoadBack(
            prefix,
            pool,
            lower.device,
            self._up,
            self.tiers,
            cache_id=cache_id,
            counters=self.counters,
            clock=clock,
            late_after_s=lower.late_after_s,
            on_return=on_return,
        )

    @property
    def is_copying(self) -> bool:
        """Copies are under way or wait."""
        return bool(len(self._writes)) or self._loads.is_copying

    @property
    def num_pinned(self) -> int:
        """Entries of the tiers that are being read or written now."""
        return self._writes.num_entries_in_flight + self._loads.num_entries_in_flight

    def begin_load(self, ask: Admission, found: Lookup) -> bool:
        """Load a bundle deeper than what the device has, if there is one; False if not."""
        key = ask.key
        if key is None or ask.is_probed or ask.num_loads >= MAX_LOADS:
            return False
        position = deepest_states(
            key,
            ask.marks,
            num_pages=len(found.match.path),
            above=found.bundle.position if found.bundle is not None else 0,
            contains=lambda kind, prefix_hash: self._contains(kind, prefix_hash, key.root_hash),
        )
        ask.is_probed = True
        if position is None:
            return False
        if not self._loads.join(ask, position) and not self._loads.begin(ask, found, position):
            ask.is_probed = False
            ask.load_reason = Reason.NO_ROOM
            return False
        ask.num_loads += 1
        return True

    def is_loading(self, ask: Admission) -> bool:
        """A prompt waits for a load; it is not to be admitted yet."""
        return ask.load is not None and ask.load.status is LoadStatus.COPYING

    def tier_of(self, ask: Admission, bundle: Bundle) -> str:
        """Return where the bundle lay that a prompt uses."""
        return self._loads.tier_of(ask, bundle) or DEVICE

    def leave(self, ask: Admission) -> None:
        """Let a prompt wait no more, for it was admitted or has ended."""
        self._loads.leave(ask)

    def write(self, bundle: Bundle) -> None:
        """Copy a bundle down if it is worth it; its path must be locked now."""
        self._writes.add(bundle)

    def poll(self) -> None:
        """Take in the copies that have ended and start the next."""
        for done in self._up.poll():
            self._loads.take(done)
        for done in self._down.poll():
            self._writes.take(done)
        self._loads.pump()
        self._writes.pump()

    def wait(self, timeout_s: float) -> None:
        """Wait until a copy has ended that somebody waits for, but not longer."""
        (self._up if self._loads.is_copying else self._down).wait(timeout_s)

    def shed(self) -> None:
        """Give up what is held for later: copies that have not begun, loads not yet used."""
        self._loads.release_landed()
        self._writes.shed()

    def discard_of(self, cache: SequenceCache) -> None:
        """Take out of the tiers what a sequence published, and the states it started from."""
        bundles = [cache.hit] if cache.hit is not None else []
        own_from = sys.maxsize
        if cache.publication is not None:
            deepest, first = cache.publication.deepest, cache.publication.first_added
            bundles += [*cache.publication.added, *([deepest] if deepest is not None else [])]
            own_from = first.start if first is not None else own_from
        self.discard(bundles, from_position=own_from)

    def discard(self, bundles: list[Bundle], *, from_position: int) -> None:
        """Take bundles out of the tiers, and their pages that begin at `from_position` or later."""
        meant = set(bundles)
        self._writes.forget(lambda bundle, _: bundle in meant)
        for bundle in meant:
            self._writes.remove(bundle, from_position=from_position)

    def flush(self, salt: str | None) -> None:
        """Forget one salt, or all, in every tier."""
        root_hash = None if salt is None else root_hash_of(salt)
        self._writes.forget(lambda _, of: root_hash in (None, of))
        self._loads.give_up(lambda of: root_hash in (None, of))
        for tier in self.tiers:
            if root_hash is None:
                tier.store.flush()
            else:
                tier.store.forget(salt_suffix(root_hash))

    def flush_tier(self, name: str, salt: str) -> None:
        """Forget one salt in one tier; no copy may be under way."""
        for tier in self.tiers:
            if tier.name == name:
                tier.store.forget(salt_suffix(root_hash_of(salt)))

    def blank(self, pages: list[int], slots: list[int]) -> None:
        """Zero pages and slots of the device that nobody holds."""
        views = [view for slot in slots for view in self._device.states(slot)]
        for page_id in pages:
            views += self._device.page(page_id, num_tokens=self._page_size)
        for view in views:
            view[:] = bytes(len(view))

    def pages(self) -> list[int]:
        """Return the device pages that belong to loads."""
        return self._loads.pages()

    def slots(self) -> list[int]:
        """Return the bundle slots that belong to loads."""
        return self._loads.slots()

    @property
    def num_reserved(self) -> int:
        """Pages promised to prompts that wait for a load."""
        return self._loads.num_reserved

    def locks(self) -> tuple[Counter[Node], Counter[Bundle]]:
        """Return what copies hold, for `check_integrity`."""
        nodes, bundles = self._writes.locks()
        more_nodes, more_bundles = self._loads.locks()
        return nodes + more_nodes, bundles + more_bundles

    def close(self) -> None:
        """End the threads after the copy each is at, and leave the stores."""
        self._down.close()
        self._up.close()
        for tier in self.tiers:
            tier.store.close()

    def _contains(self, kind: EntryKind, prefix_hash: bytes, root_hash: bytes) -> bool:
        key = entry_key(kind, prefix_hash, cache_id=self._cache_id, root_hash=root_hash)
        return any(key in tier.store for tier in self.tiers)
