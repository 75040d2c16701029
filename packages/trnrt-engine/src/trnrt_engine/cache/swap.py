"""Copies live bundles to host memory and back while the engine goes on.

A sequence keeps its pages and its slot until the last of its bytes is copied, and gets them before
the first comes back. What does not fit, fails, is damaged or comes late is lost: its sequence
computes again.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass

from trnrt_engine.cache.copies import CopyDone, CopyKind, CopyQueue, CopyStatus
from trnrt_engine.cache.entries import DeviceBytes, EntryKind
from trnrt_engine.cache.live import LiveBundle, LiveStatus
from trnrt_engine.cache.loadback import LATE_AFTER_S, LATE_BYTES_PER_S
from trnrt_engine.cache.prefix_key import PrefixKey
from trnrt_engine.cache.radix import Node
from trnrt_engine.cache.report import SwapCounters
from trnrt_engine.cache.sequence import SequenceCache
from trnrt_engine.cache.swap_space import SwapSpace

logger = logging.getLogger(__name__)

MAX_BYTES_IN_FLIGHT = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapSettings:
    """What preempted sequences are swapped with.

    Fields:
        budget_bytes: of host memory.
        late_after_s: a load is given up after so long, and the time its bytes take.
        delay: called in the copy thread before each copy; for tests.
    """

    device: DeviceBytes
    budget_bytes: int
    late_after_s: float = LATE_AFTER_S
    delay: Callable[[], None] | None = None


class Swap:
    """The live bundles of preempted sequences.

    Args:
        cache_id: of this engine's numbers.
        clock: seconds, monotonic.
        release: gives back what a sequence held; called when its copies have ended.

    Attributes:
        space: where they lie.
    """

    def __init__(
        self,
        settings: SwapSettings,
        *,
        cache_id: bytes,
        counters: SwapCounters,
        clock: Callable[[], float],
        release: Callable[[SequenceCache], None],
    ) -> None:
        self.space = SwapSpace(settings.budget_bytes)
        self._device = settings.device
        self._late_after_s = settings.late_after_s
        self._delay = settings.delay
        self._cache_id = cache_id
        self._counters = counters
        self._clock = clock
        self._release = release
        self._serials = itertools.count(1)
        self._bundles: dict[LiveBundle, None] = {}
        self._queue: CopyQueue | None = None

    @property
    def is_copying(self) -> bool:
        """Copies are under way or wait."""
        return any(bundle.todo or bundle.tickets for bundle in self._bundles)

    @property
    def is_saving(self) -> bool:
        """A sequence gives its room back as soon as it is copied."""
        return any(bundle.status is LiveStatus.SAVING for bundle in self._bundles)

    @property
    def num_loading(self) -> int:
        """Sequences that have their room again and wait for their bytes or to be admitted."""
        ready = (LiveStatus.LOADING, LiveStatus.LOADED)
        return sum(bundle.status in ready for bundle in self._bundles)

    def save(
        self,
        cache: SequenceCache,
        key: PrefixKey,
        *,
        position: int,
        decode_from: int,
        nodes: list[Node],
    ) -> LiveBundle | None:
        """Begin to copy what a sequence has after `position` tokens; it must not go on.

        Pages of the tree are copied, too, if there is room: they may be evicted meanwhile.

        Args:
            nodes: the leading whole pages it shares with the tree.

        Returns:
            None when it does not fit; then nothing is taken over.
        """
        shared = [(node, cache.page_ids[index]) for index, node in enumerate(nodes)]
        bundle = LiveBundle(
            serial=next(self._serials),
            key=key,
            position=position,
            decode_from=decode_from,
            cache_id=self._cache_id,
            nodes=shared,
            publication=cache.publication,
        )
        for first in sorted({0, len(shared)}):
            bundle.first_saved = first
            bundle.begin(cache, LiveStatus.SAVING, first=first)
            bundle.num_bytes = self._size_of(bundle)
            if self.space.promise(bundle.num_bytes):
                self._bundles[bundle] = None
                self._pump(bundle)
                return bundle
        return None

    def load(self, bundle: LiveBundle, cache: SequenceCache, *, first: int) -> None:
        """Begin to fill a sequence's room: its pages from `first` on, and its slot."""
        bundle.begin(cache, LiveStatus.LOADING, first=first)
        self._counters.loads += 1
        bundle.deadline_s = self._clock() + self._late_after_s + bundle.num_bytes / LATE_BYTES_PER_S
        self._pump(bundle)

    def take_loaded(self, bundle: LiveBundle) -> SequenceCache | None:
        """Hand over the room of a bundle that is whole again; None while it is not."""
        if bundle.status is not LiveStatus.LOADED or bundle.cache is None:
            return None
        cache, bundle.cache = bundle.cache, None
        self._forget(bundle)
        return cache

    def drop(self, bundle: LiveBundle) -> None:
        """Forget a bundle wherever it is: its sequence has ended or computes again."""
        was_saving = bundle.status is LiveStatus.SAVING
        self._lose(bundle)
        if was_saving and bundle.cache is not None:
            # What a cancelled copy still reads may change: it is thrown away.
            self._give_back(bundle)
        self._settle(bundle)

    def lose(self, bundle: LiveBundle, why: str) -> None:
        """Forget a saved bundle that cannot be restored."""
        self._fail(bundle, why)
        self._settle(bundle)

    def poll(self) -> None:
        """Take in the copies that have ended, give up what is late, start the next."""
        for done in self._queue.poll() if self._queue is not None else ():
            self._take(done)
        now_s = self._clock()
        for bundle in list(self._bundles):
            if bundle.status is LiveStatus.LOADING and now_s >= bundle.deadline_s:
                self._fail(bundle, "late")
            self._pump(bundle)
            self._settle(bundle)

    def wait(self, timeout_s: float) -> None:
        """Wait until a copy has ended, but not longer."""
        if self._queue is not None:
            self._queue.wait(timeout_s)

    def close(self) -> None:
        """End the copy thread."""
        if self._queue is not None:
            self._queue.close()

    def holders(self) -> list[SequenceCache]:
        """Return what sequences hold while they are copied, for `check_integrity`."""
        return [bundle.cache for bundle in self._bundles if bundle.cache is not None]

    def check_integrity(self) -> None:
        """Prove that the swap space is what the bundles count on."""
        self.space.check_integrity([bundle.num_bytes for bundle in self._bundles])

    def _size_of(self, bundle: LiveBundle) -> int:
        """Count the bytes of all entries; whole pages are alike."""
        whole, num_whole, total = 0, 0, 0
        for _, entry in bundle.todo:
            header = len(entry.header(self._cache_id))
            is_whole = entry.position - entry.start == bundle.key.page_size
            if entry.kind is EntryKind.PAGE and is_whole:
                num_whole += 1
                whole = whole or header + sum(map(len, entry.buffers(self._device)))
            else:
                total += header + sum(map(len, entry.buffers(self._device)))
        return total + num_whole * whole

    def _pump(self, bundle: LiveBundle) -> None:
        while bundle.todo and self._submit(bundle):
            pass

    def _submit(self, bundle: LiveBundle) -> bool:
        """Start the next copy of a bundle; False if the thread takes no more now."""
        if self._queue is None:
            self._queue = CopyQueue(max_bytes_in_flight=MAX_BYTES_IN_FLIGHT, delay=self._delay)
        index, entry = bundle.todo[0]
        key, header = bundle.store_key(index), bytearray(entry.header(self._cache_id))
        if bundle.status is LiveStatus.LOADING:
            header = bytearray(len(header))
            buffers = [memoryview(header), *entry.buffers(self._device)]
            ticket = self._queue.submit_get(self.space, key, into=buffers)
        else:
            chunks = [memoryview(header), *entry.buffers(self._device)]
            ticket = self._queue.submit_put(self.space, key, chunks)
        if ticket is None:
            return False
        bundle.todo.popleft()
        bundle.tickets[ticket] = (index, entry, header)
        return True

    def _take(self, done: CopyDone) -> None:
        """Take in the end of one copy."""
        bundle = next((b for b in self._bundles if done.ticket in b.tickets), None)
        if bundle is None:
            return
        index, entry, header = bundle.tickets.pop(done.ticket)
        if bundle.status is LiveStatus.LOST:
            self.space.remove(bundle.store_key(index))
        elif done.status is not CopyStatus.DONE:
            self._fail(bundle, f"{entry.kind.name.lower()} {done.status}")
        elif done.kind is CopyKind.GET and (defect := entry.defect(bytes(header), self._cache_id)):
            self._fail(bundle, f"{entry.kind.name.lower()} refused: {defect}")
        else:
            way = "in" if done.kind is CopyKind.GET else "out"
            self._counters.bytes_copied[way] += done.num_bytes
            bundle.note(entry)

    def _fail(self, bundle: LiveBundle, why: str) -> None:
        self._counters.failed += 1
        logger.warning("swapped sequence lost tokens=%d: %s", bundle.position, why)
        self._lose(bundle)

    def _lose(self, bundle: LiveBundle) -> None:
        """Stop the copies of a bundle; its room is given back when they have ended."""
        bundle.status = LiveStatus.LOST
        bundle.todo.clear()
        if self._queue is not None:
            for ticket in bundle.tickets:
                self._queue.cancel(ticket)

    def _settle(self, bundle: LiveBundle) -> None:
        """Go on with a bundle whose copies have all ended."""
        if bundle.todo or bundle.tickets or bundle not in self._bundles:
            return
        is_under_way = bundle.status in (LiveStatus.SAVING, LiveStatus.LOADING)
        if is_under_way and not bundle.is_whole:
            self._fail(bundle, "incomplete")
        match bundle.status:
            case LiveStatus.SAVING:
                bundle.status = LiveStatus.SAVED
                self._give_back(bundle)
            case LiveStatus.LOADING:
                bundle.status = LiveStatus.LOADED
            case LiveStatus.LOST:
                self._give_back(bundle)
                self._forget(bundle)

    def _give_back(self, bundle: LiveBundle) -> None:
        cache, bundle.cache = bundle.cache, None
        if cache is not None:
            self._release(cache)

    def _forget(self, bundle: LiveBundle) -> None:
        for index in range(bundle.first_saved, bundle.num_pages + 1):
            self.space.remove(bundle.store_key(index))
        self.space.take_back(bundle.num_bytes)
        del self._bundles[bundle]
