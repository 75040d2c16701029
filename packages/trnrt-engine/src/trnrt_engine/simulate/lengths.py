"""Tiers that keep the lengths of entries in place of their bytes, and copies in virtual time.

The engine's own write-through and load-back run on them: same keys, same headers, same order.
"""

from __future__ import annotations

import mmap
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trnrt_engine.cache.arena import layout_within
from trnrt_engine.cache.bytestore import CopyStore, Pinned, StoreStats
from trnrt_engine.cache.copies import CopyDone, CopyKind, CopyStatus
from trnrt_engine.cache.disk_format import HEADER_BYTES
from trnrt_engine.cache.host_store import DEFAULT_BLOCK_BYTES


class LengthBytes:
    """Pages and slots as buffers of the right length over memory that is never touched.

    Args:
        page_bytes, state_bytes: of one page of `page_size` tokens, and of one bundle's states.
    """

    def __init__(self, *, page_bytes: int, state_bytes: int, page_size: int) -> None:
        self._page_bytes = page_bytes
        self._state_bytes = state_bytes
        self._page_size = page_size
        self._view = memoryview(mmap.mmap(-1, max(page_bytes, state_bytes)))

    def page(self, page_id: int, *, num_tokens: int) -> list[memoryview]:
        """The head of a page."""
        return [self._view[: self._page_bytes * num_tokens // self._page_size]]

    def states(self, slot: int) -> list[memoryview]:
        """States and conv tails."""
        return [self._view[: self._state_bytes]]

    def live(self, slot: int) -> list[memoryview]:
        """Those of a sequence; open pools and its row of the sampling state are left out."""
        return self.states(slot)


class LengthStore:
    """A `ByteStore` of headers and lengths; what was used longest ago is evicted first.

    Args:
        unit_bytes: an entry takes a whole number of these; overhead_bytes: beside its bytes.
    """

    def __init__(self, *, budget_bytes: int, unit_bytes: int = 1, overhead_bytes: int = 0) -> None:
        self.budget_bytes = budget_bytes
        self.num_bytes = 0
        self._unit_bytes = unit_bytes
        self._overhead_bytes = overhead_bytes
        self._entries: OrderedDict[bytes, tuple[bytes, int]] = OrderedDict()
        self._counts = dict.fromkeys(("hits", "misses", "puts", "refused", "evictions"), 0)

    @classmethod
    def host(cls, budget_bytes: int) -> LengthStore:
        """Return one with the room of a `HostStore`."""
        layout = layout_within(budget_bytes, block_bytes=DEFAULT_BLOCK_BYTES)
        room_bytes = layout.num_blocks * layout.block_bytes
        return cls(budget_bytes=room_bytes, unit_bytes=layout.block_bytes)

    @classmethod
    def disk(cls, budget_bytes: int) -> LengthStore:
        """Return one with the room of a `DiskStore`."""
        return cls(budget_bytes=budget_bytes, overhead_bytes=HEADER_BYTES)

    def put(self, key: bytes, chunks: Sequence[memoryview], *, value: int = 0) -> bool:
        """Keep the first chunk, which is the header, and the length of all."""
        if self.touch(key):
            return True
        length = sum(chunk.nbytes for chunk in chunks)
        size = self._size(length)
        if size > self.budget_bytes:
            self._counts["refused"] += 1
            return False
        while self.num_bytes + size > self.budget_bytes:
            self._counts["evictions"] += self.remove(next(iter(self._entries)))
        self._entries[key] = (bytes(chunks[0]), length)
        self.num_bytes += size
        self._counts["puts"] += 1
        return True

    def get(self, key: bytes) -> Pinned | None:
        """Return the header alone."""
        entry = self._entries.get(key)
        self._counts["hits" if entry is not None else "misses"] += 1
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return Pinned([memoryview(entry[0])], lambda: None)

    def __contains__(self, key: bytes) -> bool:
        return key in self._entries

    def touch(self, key: bytes, *, value: int | None = None) -> bool:
        """Count as used now; False when it is not there."""
        if key not in self._entries:
            return False
        self._entries.move_to_end(key)
        return True

    def remove(self, key: bytes) -> bool:
        """Drop an entry; False when it is not there."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return False
        self.num_bytes -= self._size(entry[1])
        return True

    def flush(self) -> int:
        """Drop all entries and count them."""
        return self.forget(b"")

    def forget(self, suffix: bytes) -> int:
        """Drop the entries whose key ends so and count them."""
        return sum(self.remove(key) for key in list(self._entries) if key.endswith(suffix))

    def stats(self) -> StoreStats:
        """Count what it holds and what was asked."""
        return StoreStats(
            num_entries=len(self._entries),
            num_bytes=self.num_bytes,
            budget_bytes=self.budget_bytes,
            damaged=0,
            failures=0,
            **self._counts,
        )

    def check_integrity(self) -> None:
        """Nothing is shared and nothing can be damaged."""

    def close(self) -> None:
        """Nothing is held."""

    def _size(self, length: int) -> int:
        return -(-(length + self._overhead_bytes) // self._unit_bytes) * self._unit_bytes


@dataclass(slots=True)
class _Copy:
    ticket: int
    kind: CopyKind
    store: CopyStore
    key: bytes
    buffers: Sequence[memoryview]
    num_bytes: int
    ends_s: float
    is_cancelled: bool = False


class VirtualCopies:
    """A copy queue in virtual time: one copy after the other, each takes what its bytes cost.

    Args:
        copy_s: what a copy of so many bytes to or from a store takes.
        clock: virtual seconds.
    """

    def __init__(
        self,
        *,
        max_bytes_in_flight: int,
        copy_s: Callable[[CopyStore, int], float],
        clock: Callable[[], float],
    ) -> None:
        self._max_bytes = max_bytes_in_flight
        self._copy_s = copy_s
        self._clock = clock
        self._copies: deque[_Copy] = deque()
        self._bytes_in_flight = 0
        self._num_tickets = 0
        self._free_at_s = 0.0

    @property
    def next_end_s(self) -> float | None:
        """When the next copy ends; None when there is none."""
        return self._copies[0].ends_s if self._copies else None

    def submit_put(
        self, store: CopyStore, key: bytes, chunks: Sequence[memoryview], *, value: int = 0
    ) -> int | None:
        """Store `chunks`; None when too much is in flight."""
        return self._submit(CopyKind.PUT, store, key, chunks)

    def submit_get(
        self,
        store: CopyStore,
        key: bytes,
        *,
        into: Sequence[memoryview] | None = None,
        num_bytes: int = 0,
    ) -> int | None:
        """Fetch an entry into buffers, of which the first is the header's."""
        return self._submit(CopyKind.GET, store, key, into or ())

    def cancel(self, ticket: int) -> bool:
        """Let a copy take no effect; it is reported when it would have ended."""
        for copy in self._copies:
            if copy.ticket == ticket:
                copy.is_cancelled = True
                return True
        return False

    def poll(self) -> list[CopyDone]:
        """Carry out what has ended by now."""
        ended = []
        while self._copies and self._copies[0].ends_s <= self._clock():
            copy = self._copies.popleft()
            self._bytes_in_flight -= copy.num_bytes
            status = CopyStatus.CANCELLED if copy.is_cancelled else _carry_out(copy)
            is_done = status is CopyStatus.DONE
            ended.append(
                CopyDone(
                    ticket=copy.ticket,
                    kind=copy.kind,
                    key=copy.key,
                    status=status,
                    num_bytes=copy.num_bytes if is_done else 0,
                )
            )
        return ended

    def wait(self, timeout_s: float) -> bool:
        """Say whether something can be polled; time does not pass here."""
        return bool(self._copies) and self._copies[0].ends_s <= self._clock()

    def close(self) -> None:
        """Drop what is left."""
        self._copies.clear()

    def _submit(
        self, kind: CopyKind, store: CopyStore, key: bytes, buffers: Sequence[memoryview]
    ) -> int | None:
        num_bytes = sum(buffer.nbytes for buffer in buffers)
        if self._copies and self._bytes_in_flight + num_bytes > self._max_bytes:
            return None
        self._bytes_in_flight += num_bytes
        self._num_tickets += 1
        starts_s = max(self._clock(), self._free_at_s)
        self._free_at_s = starts_s + self._copy_s(store, num_bytes)
        self._copies.append(
            _Copy(self._num_tickets, kind, store, key, buffers, num_bytes, self._free_at_s)
        )
        return self._num_tickets


def _carry_out(copy: _Copy) -> CopyStatus:
    if copy.kind is CopyKind.PUT:
        is_stored = copy.store.put(copy.key, copy.buffers)
        return CopyStatus.DONE if is_stored else CopyStatus.REFUSED
    pinned = copy.store.get(copy.key)
    if pinned is None:
        return CopyStatus.MISSING
    with pinned:
        pinned.copy_into(copy.buffers[:1])
    return CopyStatus.DONE
