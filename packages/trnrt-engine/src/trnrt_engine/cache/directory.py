"""The entries of an arena: their life, who reads them, which goes first, what a crash leaves.

    FREE -> WRITING -> READY -> (DOOMED) -> FREE

A WRITING entry has its blocks and its key but cannot be read; READY is one word written after
payload and checksum. DOOMED is an entry that was dropped while somebody read it: it has no key
any more and is freed with its last pin. Each member has its own row of pins, so what a dead
process held is known and taken back by whoever finds it dead.

Everything here runs under the store's lock. Every change is ordered so that the states alone
say what is true: a process that dies in the middle leaves `DIRTY` set, and the next to take the
lock derives blocks, index and counts from the states.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from trnrt_engine.cache.arena import MAX_MEMBERS, Arena
from trnrt_engine.cache.blocks import FREE, BlockTable
from trnrt_engine.cache.bytestore import MAX_KEY_BYTES, MIN_KEY_BYTES
from trnrt_engine.cache.key_index import KeyIndex
from trnrt_engine.errors import IntegrityError

if TYPE_CHECKING:
    from typing import Any

WRITING, READY, DOOMED = 1, 2, 3

DIRTY, CLOCK, USED_BLOCKS, NUM_ENTRIES = 0, 1, 2, 3
"""Words of the arena; from `FIRST_MEMBER` on one per member: it may have left something."""
FIRST_MEMBER = 8

_VICTIM_BATCH = 64


class Directory:
    """The tables of one arena."""

    def __init__(self, arena: Arena) -> None:
        tables = cast("dict[str, NDArray[Any]]", arena.tables)
        self._block_bytes = arena.layout.block_bytes
        self._words = arena.words
        self._state: NDArray[np.uint32] = tables["state"]
        self._crc: NDArray[np.uint32] = tables["crc"]
        self._member: NDArray[np.uint32] = tables["member"]
        self._num_bytes: NDArray[np.uint64] = tables["num_bytes"]
        self._value: NDArray[np.int64] = tables["value"]
        self._last_use: NDArray[np.uint64] = tables["last_use"]
        self._keys: NDArray[np.uint8] = tables["key"]
        self._key_bytes: NDArray[np.uint32] = tables["key_bytes"]
        self._pins: NDArray[np.uint16] = tables["pins"]
        self._blocks = BlockTable(tables["owner"])
        self._index = KeyIndex(tables["index"], keys=self._keys, key_bytes=self._key_bytes)

    @property
    def num_free_blocks(self) -> int:
        """Blocks without an owner."""
        return self._blocks.num_blocks - int(self._words[USED_BLOCKS])

    @property
    def num_used_blocks(self) -> int:
        """Blocks with an owner."""
        return int(self._words[USED_BLOCKS])

    @property
    def num_entries(self) -> int:
        """Entries that can be read."""
        return int(self._words[NUM_ENTRIES])

    def blocks_for(self, num_bytes: int) -> int:
        """Count the blocks an entry takes, at least one."""
        return max(1, -(-num_bytes // self._block_bytes))

    def find(self, key: bytes) -> int | None:
        """Look up an entry that is being written or can be read."""
        return self._index.find(key)

    def is_ready(self, entry: int) -> bool:
        """Say whether an entry can be read."""
        return int(self._state[entry]) == READY

    def writer_of(self, entry: int) -> int:
        """Name the member that wrote or writes an entry."""
        return int(self._member[entry])

    def crc_of(self, entry: int) -> int:
        """Read the checksum an entry was published with."""
        return int(self._crc[entry])

    def size_of(self, entry: int) -> int:
        """Read the payload's length."""
        return int(self._num_bytes[entry])

    def key_of(self, entry: int) -> bytes:
        """Read an entry's key."""
        return self._index.key_of(entry)

    def pieces(self, entry: int) -> list[tuple[int, int]]:
        """List (first block, number of blocks) in order."""
        return self._blocks.of(entry, self.blocks_for(self.size_of(entry)))

    def claim(self, key: bytes, num_bytes: int, *, value: int, member: int) -> int | None:
        """Begin an entry: blocks, record and key, not readable yet; None without room."""
        count = self.blocks_for(num_bytes)
        blocks = self._blocks.find(count)
        if blocks is None:
            return None
        entry = self._blocks.assign(blocks)
        self._keys[entry, : len(key)] = np.frombuffer(key, np.uint8)
        self._key_bytes[entry] = len(key)
        self._num_bytes[entry] = num_bytes
        self._value[entry] = value
        self._member[entry] = member
        self._pins[:, entry] = 0
        self.use(entry)
        self._count(USED_BLOCKS, count)
        self._state[entry] = WRITING
        self._index.insert(entry)
        return entry

    def publish(self, entry: int, crc: int) -> None:
        """Make a written entry readable."""
        self._crc[entry] = crc
        self._count(NUM_ENTRIES, 1)
        self._state[entry] = READY

    def use(self, entry: int, *, value: int | None = None) -> None:
        """Count as used now."""
        self._count(CLOCK, 1)
        self._last_use[entry] = self._words[CLOCK]
        if value is not None:
            self._value[entry] = value

    def pin(self, entry: int, member: int) -> None:
        """Keep an entry from being freed."""
        if int(self._pins[member, entry]) == np.iinfo(np.uint16).max:
            raise IntegrityError("an entry is pinned 65,535 times by one process")
        self._pins[member, entry] += np.uint16(1)

    def unpin(self, entry: int, member: int) -> None:
        """Undo one `pin`."""
        if int(self._pins[member, entry]) == 0:
            raise IntegrityError(f"entry {entry} has no pin of member {member}")
        self._pins[member, entry] -= np.uint16(1)
        if int(self._state[entry]) == DOOMED and not self._pins[:, entry].any():
            self._free(entry)

    def drop(self, entry: int) -> None:
        """Take an entry out; its blocks are free now, or with its last pin."""
        self._index.delete(entry)
        if int(self._state[entry]) == READY:
            self._count(NUM_ENTRIES, -1)
        if self._pins[:, entry].any():
            self._state[entry] = DOOMED
        else:
            self._free(entry)

    def entries(self) -> NDArray[np.int64]:
        """List the entries that can be read."""
        return np.flatnonzero(self._state == READY)

    def make_room(self, count: int) -> int | None:
        """Evict until `count` blocks are free; nothing, and None, if that cannot be reached.

        Returns:
            The number of entries evicted.
        """
        missing = count - self.num_free_blocks
        if missing <= 0:
            return 0
        ready = self.entries()
        loose = ready[~self._pins[:, ready].any(axis=0)]
        if int(self._sizes(loose).sum()) < missing:
            return None
        num_evicted = 0
        for entry in self._in_eviction_order(loose):
            self.drop(entry)
            num_evicted += 1
            if self.num_free_blocks >= count:
                break
        return num_evicted

    def reclaim(self, member: int) -> None:
        """Take back what a member that is gone held: its pins and half-written entries."""
        writing = np.flatnonzero((self._state == WRITING) & (self._member == member))
        for entry in writing:
            self.drop(int(entry))
        self._pins[member, :] = 0
        doomed = np.flatnonzero(self._state == DOOMED)
        for entry in doomed[~self._pins[:, doomed].any(axis=0)]:
            self._free(int(entry))
        self._words[FIRST_MEMBER + member] = 0

    def recover(self) -> None:
        """Derive blocks, index and counts from the states."""
        self._blocks.sweep(self._state != FREE)
        doomed = np.flatnonzero(self._state == DOOMED)
        for entry in doomed[~self._pins[:, doomed].any(axis=0)]:
            self._free(int(entry))
        self._index.rebuild(np.flatnonzero((self._state == WRITING) | (self._state == READY)))
        self._words[USED_BLOCKS] = self._blocks.count_used()
        self._words[NUM_ENTRIES] = np.count_nonzero(self._state == READY)

    def check_integrity(self) -> None:
        """Prove that blocks, index, pins and counts are what the states say.

        Raises:
            IntegrityError: they are not.
        """
        if int(self._state.max()) > DOOMED:
            raise IntegrityError("an entry has an unknown state")
        owners = self._blocks.owners()
        if int(owners.max()) > len(owners):
            raise IntegrityError("a block has an owner that cannot exist")
        live = np.flatnonzero(self._state)
        owned = np.bincount(owners, minlength=len(owners) + 1)[1:]
        sizes = self._sizes(live)
        if (owned[live] != sizes).any():
            raise IntegrityError("an entry does not own the blocks its length needs")
        if (owners[live] != live + 1).any():
            raise IntegrityError("an entry does not own its first block")
        used = int(np.count_nonzero(owners))
        if used != int(sizes.sum()) or used != int(self._words[USED_BLOCKS]):
            raise IntegrityError(
                f"{used} blocks have an owner, entries need {int(sizes.sum())}, "
                f"{int(self._words[USED_BLOCKS])} are counted"
            )
        self._check_keys(live)
        if self.num_entries != len(self.entries()):
            raise IntegrityError(f"{len(self.entries())} entries, {self.num_entries} counted")
        pinned = np.flatnonzero(self._pins.any(axis=0))
        if np.setdiff1d(pinned, live[self._state[live] != WRITING]).size:
            raise IntegrityError("an entry that cannot be read is pinned")
        if np.setdiff1d(np.flatnonzero(self._state == DOOMED), pinned).size:
            raise IntegrityError("a dropped entry has no pin left and is not free")

    def joined_members(self) -> Iterator[int]:
        """List the members that may have left something."""
        for member in range(MAX_MEMBERS):
            if int(self._words[FIRST_MEMBER + member]):
                yield member

    def join(self, member: int) -> None:
        """Note that a member takes part."""
        self._words[FIRST_MEMBER + member] = 1

    def _check_keys(self, live: NDArray[np.int64]) -> None:
        keyed = live[self._state[live] != DOOMED]
        if len(self._index) != len(keyed):
            raise IntegrityError(f"{len(keyed)} entries have a key, the index {len(self._index)}")
        for entry in keyed:
            key = self._index.key_of(int(entry))
            if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES or self._index.find(key) != entry:
                raise IntegrityError(f"entry {int(entry)} is not found by its key")

    def _sizes(self, entries: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the blocks each entry takes; one more than there are if its length is absurd."""
        limit = self._blocks.num_blocks
        num_bytes = np.minimum(self._num_bytes[entries], limit * self._block_bytes + 1)
        return np.maximum(1, -(-num_bytes.astype(np.int64) // self._block_bytes))

    def _count(self, word: int, change: int) -> None:
        self._words[word] = int(self._words[word]) + change

    def _free(self, entry: int) -> None:
        count = self.blocks_for(self.size_of(entry))
        self._state[entry] = FREE
        self._count(USED_BLOCKS, -self._blocks.free(entry, count))

    def _in_eviction_order(self, entries: NDArray[np.int64]) -> Iterator[int]:
        """Yield by (value, last use), sorting no more than is asked for."""
        while len(entries):
            values = self._value[entries]
            lowest = values == values.min()
            group = entries[lowest]
            if len(group) > _VICTIM_BATCH:
                oldest = np.argpartition(self._last_use[group], _VICTIM_BATCH)[:_VICTIM_BATCH]
                group = group[oldest]
            group = group[np.argsort(self._last_use[group])]
            yield from map(int, group)
            entries = np.setdiff1d(entries, group, assume_unique=True)
