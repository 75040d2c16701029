"""Copies bundles from the device to the tiers below while the engine goes on.

What is worth it: every bundle that is more than a chunk's end (the tail of a prompt, marks,
junctions, the end of the system text), when it is published and again when it is hit and a tier
has lost it. Not those with a time to live: lower tiers know none; nor where a turn ended: only its
session may use it.

In order, first to host, then to disk; of each bundle the pages a tier lacks, and the states when
all of them are there. At most three quarters of the bundle slots wait so; beyond that the least
valuable give way. Bundle and pages stay locked until the last copy is
acknowledged, whatever its end.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from trnrt_engine.cache.bundles import Bundle, Kind
from trnrt_engine.cache.bytestore import ByteStore
from trnrt_engine.cache.copies import Copies, CopyDone, CopyStatus
from trnrt_engine.cache.entries import DeviceBytes, Entry, EntryKind, entries_of, root_of
from trnrt_engine.cache.prefix_cache import PrefixCache
from trnrt_engine.cache.radix import Node
from trnrt_engine.cache.report import TierCounters

logger = logging.getLogger(__name__)

ENTRIES_A_POLL = 64  # looked up in a store between two steps


@dataclass(frozen=True, slots=True)
class Tier:
    """A store below the device and its name in reports."""

    name: str
    store: ByteStore


@dataclass(slots=True, eq=False)
class _Write:
    """One bundle on its way.

    Fields:
        node: locked with its path. todo: what is still to be copied, and where to, in order.
        tickets: copies under way.
        is_forgotten: what it has stored is removed at its end.
    """

    bundle: Bundle
    node: Node
    root_hash: bytes
    todo: deque[tuple[Tier, Entry]]
    tickets: dict[int, tuple[Tier, Entry]] = field(default_factory=dict)
    is_forgotten: bool = False


class WriteThrough:
    """The bundles being copied down, in order.

    Args:
        on_return: called when locks were given back.
    """

    def __init__(
        self,
        prefix: PrefixCache,
        device: DeviceBytes,
        queue: Copies,
        tiers: Sequence[Tier],
        *,
        cache_id: bytes,
        counters: TierCounters,
        on_return: Callable[[], None],
    ) -> None:
        self._prefix = prefix
        self._device = device
        self._queue = queue
        self._tiers = tiers
        self._cache_id = cache_id
        self._counters = counters
        self._on_return = on_return
        self._writes: deque[_Write] = deque()
        self._under_way: set[tuple[str, bytes]] = set()
        self._max_writes = max(prefix.num_slots * 3 // 4, 1)

    def __len__(self) -> int:
        return len(self._writes)

    @property
    def num_entries_in_flight(self) -> int:
        """Entries the copy thread has or gets next."""
        return sum(len(write.tickets) for write in self._writes)

    def add(self, bundle: Bundle) -> None:
        """Copy a bundle if it is worth it and not under way; its path must be locked now."""
        is_meant = bundle.kinds != Kind.CHUNK_END and not bundle.kinds & Kind.TURN_END
        is_worth_it = bundle.is_live and bundle.ttl_s is None and is_meant
        if not is_worth_it or any(write.bundle is bundle for write in self._writes):
            return
        if not self._prefix.can_hold(bundle.node):
            self._counters.skipped_writes += 1
            return
        if len(self._writes) >= self._max_writes and not self._drop_waiting(bundle):
            self._counters.skipped_writes += 1
            return
        entries = entries_of(bundle)
        self._prefix.lock(bundle.node)
        self._prefix.lock_bundle(bundle)
        todo = deque((tier, entry) for tier in self._tiers for entry in entries)
        self._writes.append(_Write(bundle, bundle.node, root_of(bundle.node).hash, todo))

    def pump(self) -> None:
        """Hand the copy thread what it takes, and let go of what is done."""
        budget = ENTRIES_A_POLL
        for write in list(self._writes):
            while write.todo and budget:
                budget -= 1
                if not self._submit(write):
                    break
        self._let_go_idle()

    def take(self, done: CopyDone) -> bool:
        """Take in the end of a copy; False if it is not one of these."""
        write = next((write for write in self._writes if done.ticket in write.tickets), None)
        if write is None:
            return False
        tier, entry = write.tickets.pop(done.ticket)
        self._under_way.discard((tier.name, done.key))
        if done.status is CopyStatus.DONE:
            self._counters.bytes_written[tier.name] += done.num_bytes
            if entry.kind is EntryKind.STATES:
                self._counters.writes[tier.name] += 1
        else:
            self._counters.failed_writes += 1
            write.todo = deque(item for item in write.todo if item[0] is not tier)
        return True

    def shed(self) -> None:
        """Give up what the copy thread does not have yet."""
        for write in self._writes:
            self._counters.skipped_writes += bool(write.todo)
            write.todo.clear()
        self._let_go_idle()

    def forget(self, is_meant: Callable[[Bundle, bytes], bool]) -> None:
        """Stop the copies of some bundles, given with the root hash; nothing of them stays."""
        for write in self._writes:
            if is_meant(write.bundle, write.root_hash):
                write.is_forgotten = True
                write.todo.clear()
                for ticket in write.tickets:
                    self._queue.cancel(ticket)
        self._let_go_idle()

    def remove(self, bundle: Bundle, *, from_position: int) -> None:
        """Take a bundle out of the tiers, and its pages that begin at `from_position` or later."""
        root_hash = root_of(bundle.node).hash
        for entry in entries_of(bundle):
            if entry.kind is EntryKind.STATES or entry.start >= from_position:
                for tier in self._tiers:
                    tier.store.remove(entry.key(self._cache_id, root_hash))

    def locks(self) -> tuple[Counter[Node], Counter[Bundle]]:
        """Return what copies hold, for `check_integrity`."""
        return (
            Counter(write.node for write in self._writes),
            Counter(write.bundle for write in self._writes),
        )

    def _submit(self, write: _Write) -> bool:
        """Start one copy, or find that it is not needed; False if it must wait."""
        tier, entry = write.todo[0]
        if entry.kind is EntryKind.STATES and write.tickets:
            return False
        key = entry.key(self._cache_id, write.root_hash)
        if (tier.name, key) in self._under_way:
            return False  # with another bundle
        if not tier.store.touch(key):
            header = memoryview(entry.header(self._cache_id))
            chunks = [header, *entry.buffers(self._device)]
            ticket = self._queue.submit_put(tier.store, key, chunks)
            if ticket is None:
                return False
            write.tickets[ticket] = (tier, entry)
            self._under_way.add((tier.name, key))
        write.todo.popleft()
        return True

    def _drop_waiting(self, newest: Bundle) -> bool:
        """Give up the least of those that have not begun, the oldest first, for a new one."""
        waiting = [w for w in self._writes if w.todo and not w.tickets]
        least = min(waiting, key=lambda write: write.bundle.kinds, default=None)
        if least is None or least.bundle.kinds > newest.kinds:
            return False
        self._writes.remove(least)
        self._counters.skipped_writes += 1
        self._end(least)
        return True

    def _let_go_idle(self) -> None:
        for write in [w for w in self._writes if not w.todo and not w.tickets]:
            self._writes.remove(write)
            self._end(write)

    def _end(self, write: _Write) -> None:
        if write.is_forgotten:
            self.remove(write.bundle, from_position=0)
        self._prefix.unlock_bundle(write.bundle)
        self._prefix.unlock(write.node)
        self._on_return()
