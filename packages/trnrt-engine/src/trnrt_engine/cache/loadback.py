"""Copies bundles from the tiers below back to the device before their prompt is admitted.

A load reserves the room its prompt needs, takes pages and a bundle slot of it, and copies into
them; nobody else sees them until every part is there and every header is the one that was due.
Then pages and bundle enter the tree like any other, and are held until who waited is admitted.

A load that is late, or lacks a part, or meets a wrong one, is given up: who waited computes. Its
pages and its slot stay taken until the last of its copies has ended.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from trnrt_engine.cache.bundles import Bundle, Kind
from trnrt_engine.cache.copies import Copies, CopyDone, CopyStatus
from trnrt_engine.cache.entries import (
    DeviceBytes,
    Entry,
    wanted_entry,
    wanted_states,
)
from trnrt_engine.cache.pages import PagePool
from trnrt_engine.cache.prefix_cache import Lookup, PrefixCache
from trnrt_engine.cache.prefix_key import PrefixKey
from trnrt_engine.cache.radix import Node
from trnrt_engine.cache.report import Reason, TierCounters
from trnrt_engine.cache.sequence import Admission
from trnrt_engine.cache.writethrough import Tier

logger = logging.getLogger(__name__)

MAX_LOADS = 2  # tried for one prompt; the second finds what the first showed to be incomplete
LATE_AFTER_S = 2.0
LATE_BYTES_PER_S = 250e6


class LoadStatus(Enum):
    """How far a load is; GIVEN_UP ones wait for their copies only."""

    COPYING = auto()
    LANDED = auto()
    GIVEN_UP = auto()


@dataclass(slots=True, eq=False)
class Load:
    """One bundle on its way up.

    Fields:
        key, position: of the prompt it is loaded for.
        top: deepest page of it the device had; locked with its path, later the deepest loaded.
        pages: (end, page id) of those being loaded, in order; they belong to nobody else.
        slot: being loaded; None once it is a bundle.
        num_reserved: pages promised to the prompt beside them.
        todo: entries not yet asked for. tickets: those that are, with their header's buffer.
        waiters: admissions that wait for it.
        deadline_s: late from then on.
        bundle: what it has become; locked while there are waiters.
        tiers: where parts came from.
    """

    key: PrefixKey
    position: int
    top: Node
    pages: list[tuple[int, int]]
    slot: int | None
    num_reserved: int
    todo: deque[Entry]
    deadline_s: float
    tickets: dict[int, tuple[Tier, Entry, bytearray]] = field(default_factory=dict)
    waiters: set[Admission] = field(default_factory=set)
    status: LoadStatus = LoadStatus.COPYING
    bundle: Bundle | None = None
    tiers: set[str] = field(default_factory=set)


class LoadBack:
    """The loads under way, and those that landed and wait to be used.

    Args:
        tiers: from the fastest to the slowest.
        on_return: called when room was given back.
    """

    def __init__(
        self,
        prefix: PrefixCache,
        pool: PagePool,
        device: DeviceBytes,
        queue: Copies,
        tiers: Sequence[Tier],
        *,
        cache_id: bytes,
        counters: TierCounters,
        clock: Callable[[], float],
        late_after_s: float,
        on_return: Callable[[], None],
    ) -> None:
        self._prefix = prefix
        self._pool = pool
        self._device = device
        self._queue = queue
        self._tiers = tiers
        self._cache_id = cache_id
        self._counters = counters
        self._clock = clock
        self._late_after_s = late_after_s
        self._on_return = on_return
        self._loads: list[Load] = []

    @property
    def is_copying(self) -> bool:
        """Copies are under way."""
        return any(load.status is not LoadStatus.LANDED for load in self._loads)

    @property
    def num_entries_in_flight(self) -> int:
        """Entries the copy thread has or gets next."""
        return sum(len(load.tickets) for load in self._loads)

    def join(self, ask: Admission, position: int) -> bool:
        """Let a prompt wait for the load of the same bundle if there is one."""
        key = ask.key
        for load in self._loads:
            if (
                key is not None
                and load.status is not LoadStatus.GIVEN_UP
                and load.position == position
                and load.key.root_hash == key.root_hash
                and load.key.span(0, position) == key.span(0, position)
            ):
                ask.load = load
                load.waiters.add(ask)
                return True
        return False

    def begin(self, ask: Admission, found: Lookup, position: int) -> bool:
        """Start to load the states after `position` tokens and the pages the device lacks.

        Returns:
            False when there is no room for it and for the prompt.
        """
        key = ask.key
        if key is None:
            return False
        size = key.page_size
        path = found.match.path[: position // size]
        top = path[-1] if path else self._prefix.tree.root(key)
        self._prefix.lock(top)
        ends = list(range(top.end + size, position + 1, size))
        if position % size:
            head = None if ends else self._prefix.tree.covering(top, key, position)
            if head is None:
                ends.append(position)
            else:
                self._prefix.extend_lock(head)
                top = head
        num_needed = len(ends) + -(-ask.max_tokens // size) - position // size
        num_evictable = self._prefix.num_evictable
        slot = None
        if num_needed <= self._pool.num_available(num_evictable):
            slot = self._prefix.take_slot(Kind.MARK)
        if slot is None:
            self._prefix.unlock(top)
            return False
        self._pool.reserve(num_needed, num_evictable=self._prefix.num_evictable)
        pages = [(end, self._take_page()) for end in ends]
        entries = [
            wanted_entry(key, start, end, page_id)
            for start, (end, page_id) in zip([top.end, *ends], pages, strict=False)
        ]
        entries.append(wanted_states(key, position, slot))
        load = Load(
            key,
            position,
            top,
            pages,
            slot,
            num_needed - len(pages),
            deque(entries),
            self._clock() + self._late_after_s,
        )
        load.waiters.add(ask)
        ask.load = load
        self._loads.append(load)
        self._counters.loads += 1
        return True

    def pump(self) -> None:
        """Ask for what the copy thread takes, give up what is late, finish what has ended."""
        now_s = self._clock()
        for load in list(self._loads):
            if load.status is LoadStatus.COPYING and now_s >= load.deadline_s:
                self._counters.late_loads += 1
                logger.warning("cache load late tokens=%d", load.position)
                self._give_up(load, Reason.LOAD_LATE)
            while load.todo and load.status is LoadStatus.COPYING:
                if not self._submit(load):
                    break
            if load.status is not LoadStatus.LANDED and not load.todo and not load.tickets:
                self._finish(load)

    def take(self, done: CopyDone) -> bool:
        """Take in the end of a copy; False if it is not one of these."""
        load = next((load for load in self._loads if done.ticket in load.tickets), None)
        if load is None:
            return False
        tier, entry, header = load.tickets.pop(done.ticket)
        if load.status is not LoadStatus.COPYING:
            return True
        if done.status is not CopyStatus.DONE:
            self._fail(load, f"{entry.kind.name.lower()} {done.status} {done.error or ''}".strip())
            return True
        defect = entry.defect(bytes(header), self._cache_id)
        if defect is not None:
            tier.store.remove(done.key)
            self._fail(load, f"{entry.kind.name.lower()} refused: {defect}")
            return True
        load.tiers.add(tier.name)
        self._counters.bytes_loaded[tier.name] += done.num_bytes
        return True

    def leave(self, ask: Admission) -> None:
        """Let a prompt wait no more, for it was admitted or has ended."""
        load, ask.load = ask.load, None
        if load is None:
            return
        load.waiters.discard(ask)
        if load.waiters:
            return
        if load.status is LoadStatus.LANDED:
            self._let_go(load)
        elif load.status is LoadStatus.COPYING:
            self._give_up(load, None)

    def release_landed(self) -> None:
        """Let go of all that landed: what it holds may be what those who wait lack."""
        for load in [load for load in self._loads if load.status is LoadStatus.LANDED]:
            for ask in load.waiters:
                ask.load = None
            load.waiters.clear()
            self._let_go(load)

    def give_up(self, is_meant: Callable[[bytes], bool]) -> None:
        """Give up the copies for some salts, given by root hash."""
        for load in list(self._loads):
            if load.status is LoadStatus.COPYING and is_meant(load.key.root_hash):
                self._give_up(load, None)

    def tier_of(self, ask: Admission, bundle: Bundle) -> str | None:
        """Return the slowest tier a bundle was loaded from for this prompt; None if it was not."""
        load = ask.load
        if load is None or load.bundle is not bundle:
            return None
        return next((tier.name for tier in reversed(self._tiers) if tier.name in load.tiers), None)

    def pages(self) -> list[int]:
        """Return the pages that belong to loads."""
        return [page_id for load in self._loads for _, page_id in load.pages]

    def slots(self) -> list[int]:
        """Return the bundle slots that belong to loads."""
        return [load.slot for load in self._loads if load.slot is not None]

    @property
    def num_reserved(self) -> int:
        """Pages promised to prompts that wait for a load."""
        return sum(load.num_reserved for load in self._loads)

    def locks(self) -> tuple[Counter[Node], Counter[Bundle]]:
        """Return what loads hold, for `check_integrity`."""
        return (
            Counter(load.top for load in self._loads),
            Counter(load.bundle for load in self._loads if load.bundle is not None),
        )

    def _take_page(self) -> int:
        if not self._pool.num_free:
            self._prefix.evict_page()
        return self._pool.allocate_reserved()

    def _submit(self, load: Load) -> bool:
        """Ask for one entry; False if the copy thread takes no more now."""
        entry = load.todo[0]
        key = entry.key(self._cache_id, load.key.root_hash)
        tier = next((tier for tier in self._tiers if key in tier.store), None)
        if tier is None:
            self._fail(load, f"{entry.kind.name.lower()} missing")
            return True
        header = bytearray(len(entry.header(self._cache_id)))
        buffers = [memoryview(header), *entry.buffers(self._device)]
        ticket = self._queue.submit_get(tier.store, key, into=buffers)
        if ticket is None:
            return False
        load.todo.popleft()
        load.tickets[ticket] = (tier, entry, header)
        load.deadline_s += sum(len(buffer) for buffer in buffers) / LATE_BYTES_PER_S
        return True

    def _fail(self, load: Load, why: str) -> None:
        """Give a load up and take its states out of the tiers: without the rest they are dead."""
        self._counters.failed_loads += 1
        logger.warning("cache load failed tokens=%d: %s", load.position, why)
        states = wanted_states(load.key, load.position, -1)
        for tier in self._tiers:
            tier.store.remove(states.key(self._cache_id, load.key.root_hash))
        self._give_up(load, Reason.LOAD_FAILED)

    def _give_up(self, load: Load, reason: Reason | None) -> None:
        """Let all who wait compute; what is being copied is freed when that has ended."""
        load.status = LoadStatus.GIVEN_UP
        load.todo.clear()
        for ticket in load.tickets:
            self._queue.cancel(ticket)
        for ask in load.waiters:
            ask.load = None
            ask.load_reason = reason or ask.load_reason
        load.waiters.clear()
        self._pool.unreserve(load.num_reserved)
        load.num_reserved = 0
        self._on_return()

    def _finish(self, load: Load) -> None:
        """Put what was loaded into the tree, or free it."""
        if load.status is LoadStatus.COPYING and not self._insert(load):
            self._counters.failed_loads += 1
            self._give_up(load, Reason.LOAD_FAILED)
        self._pool.free([page_id for _, page_id in load.pages])
        load.pages = []
        self._pool.unreserve(load.num_reserved)
        load.num_reserved = 0
        if load.status is LoadStatus.COPYING:
            load.status = LoadStatus.LANDED
        else:
            self._let_go(load)
        self._on_return()

    def _insert(self, load: Load) -> bool:
        """Publish pages and bundle; what others published meanwhile stays. False if refused."""
        tree, key = self._prefix.tree, load.key
        while load.pages:
            end, page_id = load.pages[0]
            if not load.top.is_attached:
                return False  # forgotten meanwhile
            node = tree.covering(load.top, key, end)
            if node is None:
                if load.top.children and key.hash_at(end) in load.top.children:
                    return False  # other tokens of the same hash lie there
                node = self._prefix.add_page(load.top, key, end, page_id)
            else:
                self._pool.free([page_id])
            del load.pages[0]
            self._prefix.extend_lock(node)
            load.top = node
        if load.slot is None or not load.top.is_attached:
            return False
        slot, load.slot = load.slot, None
        kinds = Kind.MARK if load.position < key.last_grid else Kind.TAIL
        prefix_hash = key.hash_at(load.position)
        bundle = self._prefix.add_bundle(load.top, load.position, prefix_hash, slot, kinds)
        if bundle is None:
            return False
        self._prefix.lock_bundle(bundle)
        load.bundle = bundle
        self._prefix.grade(load.top)
        return True

    def _let_go(self, load: Load) -> None:
        """Free what a load holds; its copies have ended."""
        self._loads.remove(load)
        if load.slot is not None:
            self._prefix.free_slot(load.slot)
        if load.bundle is not None:
            self._prefix.unlock_bundle(load.bundle)
        self._prefix.unlock(load.top)
        self._on_return()
