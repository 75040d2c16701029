"""Bytes in host memory, shared by the engines of a box if they are given the same folder.

The processes share one mapped file (see arena.py). Its lock is held for the bookkeeping only:
payload is copied and checksummed outside of it, so one engine's large put does not stop the
other's lookups. Nothing is readable before it is whole: allocate, write, checksum, then flip
one word. All locks are the kernel's and end with their process; what a killed process held is
taken back by the next that joins, or that needs room.

The tables are proved whenever a process joins, and trusted after that. A process that is
stopped (not killed) inside the bookkeeping makes the others wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from trnrt_engine.cache.arena import (
    ARENA_NAME,
    MAX_MEMBERS,
    Arena,
    create_arena,
    layout_within,
    open_arena,
    private_arena,
)
from trnrt_engine.cache.bytestore import (
    CacheRefused,
    Pinned,
    StoreStats,
    as_bytes,
    check_key,
    checksum,
    copy_chunks,
)
from trnrt_engine.cache.directory import DIRTY, Directory
from trnrt_engine.cache.locks import Members, Mutex
from trnrt_engine.errors import IntegrityError

logger = logging.getLogger(__name__)

DEFAULT_BLOCK_BYTES = 64 * 1024


class HostStore:
    """A `ByteStore` in memory.

    Args:
        folder: where the shared file lies, best on a tmpfs; None for memory of this process.
        budget_bytes: size of the file, tables included; the same in all processes.
        block_bytes: the unit of allocation; an entry wastes half of one on average.
        recreate: replace an arena file that would be refused. Others keep the one they have.

    Raises:
        CacheRefused: the file is foreign, damaged, of another format or geometry, or in use by
            as many processes as it admits.
        OSError: the file cannot be made; its whole space is reserved at once.
    """

    def __init__(
        self,
        folder: Path | None,
        *,
        budget_bytes: int,
        block_bytes: int = DEFAULT_BLOCK_BYTES,
        recreate: bool = False,
    ) -> None:
        self._layout = layout_within(budget_bytes, block_bytes=block_bytes)
        self._budget_bytes = budget_bytes
        self._counts = dict.fromkeys(
            ("hits", "misses", "puts", "refused", "evictions", "damaged"), 0
        )
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._mutex = Mutex(None if folder is None else folder / "arena.lock")
        self._members = Members(folder, count=MAX_MEMBERS)
        try:
            with self._mutex.held():
                self._arena, self._directory = self._open(folder, recreate=recreate)
        except BaseException:
            self._members.close()
            self._mutex.close()
            raise

    @property
    def budget_bytes(self) -> int:
        """Bytes of memory the store may take, tables included."""
        return self._budget_bytes

    @property
    def capacity_bytes(self) -> int:
        """Bytes of the blocks, what entries can take together."""
        return self._layout.num_blocks * self._layout.block_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of the blocks in use, all processes' together."""
        return self._directory.num_used_blocks * self._layout.block_bytes

    def put(self, key: bytes, chunks: Sequence[memoryview], *, value: int = 0) -> bool:
        """Store the concatenation of `chunks`.

        Entries of the lowest `value` are evicted first, among equals the least recently used;
        never one that is pinned or being written.

        Returns:
            True when it is stored, was stored before, or another process is writing it now;
            False when there is no room even after eviction.
        """
        check_key(key)
        sources = as_bytes(chunks)
        num_bytes = sum(map(len, sources))
        with self._changing():
            if self._is_there(key):
                return True
            entry = self._claim(key, num_bytes, value=value)
        if entry is None:
            return False
        try:
            parts = self._parts(entry)
            copy_chunks(parts, sources)
            crc = checksum(key, parts)
        except BaseException:
            with self._changing():
                self._directory.drop(entry)
            raise
        with self._changing():
            self._directory.publish(entry, crc)
            self._counts["puts"] += 1
        return True

    def get(self, key: bytes) -> Pinned | None:
        """Pin an entry; None when there is none or its bytes are damaged.

        A damaged entry is removed and counted. The pin ends with `Pinned.release`, with the
        store, or with the process.
        """
        with self._changing():
            entry = self._directory.find(key)
            if entry is None or not self._directory.is_ready(entry):
                self._counts["misses"] += 1
                return None
            self._directory.pin(entry, self._members.own)
            self._directory.use(entry)
            self._counts["hits"] += 1
            expected, parts = self._directory.crc_of(entry), self._parts(entry)
            is_whole = sum(map(len, parts)) == self._directory.size_of(entry)
        if is_whole and checksum(key, parts) == expected:
            return Pinned(parts, partial(self._unpin, entry))
        with self._changing():
            if self._directory.is_ready(entry):
                self._directory.drop(entry)
            self._directory.unpin(entry, self._members.own)
            self._directory.recover()  # its record may have named less than it owned
            self._counts["hits"] -= 1
            self._counts["misses"] += 1
            self._counts["damaged"] += 1
        logger.warning("host cache entry damaged, removed key=%s", key.hex())
        return None

    def __contains__(self, key: bytes) -> bool:
        with self._changing():
            entry = self._directory.find(key)
            return entry is not None and self._directory.is_ready(entry)

    def touch(self, key: bytes, *, value: int | None = None) -> bool:
        """Count as used now, with a new value if given; False when it is not there."""
        with self._changing():
            entry = self._directory.find(key)
            if entry is None or not self._directory.is_ready(entry):
                return False
            self._directory.use(entry, value=value)
            return True

    def remove(self, key: bytes) -> bool:
        """Drop an entry; False when it is not there. Who has it pinned can still read it."""
        with self._changing():
            entry = self._directory.find(key)
            if entry is None or not self._directory.is_ready(entry):
                return False
            self._directory.drop(entry)
            return True

    def flush(self) -> int:
        """Drop the entries of all processes and count them; pins stay readable."""
        with self._changing():
            entries = self._directory.entries()
            for entry in entries:
                self._directory.drop(int(entry))
            return len(entries)

    def forget(self, suffix: bytes) -> int:
        """Drop the entries whose key ends so, of all processes, and count them."""
        with self._changing():
            entries = [
                int(entry)
                for entry in self._directory.entries()
                if self._directory.key_of(int(entry)).endswith(suffix)
            ]
            for entry in entries:
                self._directory.drop(entry)
            return len(entries)

    def stats(self) -> StoreStats:
        """Count entries of all processes, and what this one asked."""
        with self._changing():
            return StoreStats(
                num_entries=self._directory.num_entries,
                num_bytes=self.num_bytes,
                budget_bytes=self._budget_bytes,
                failures=0,
                **self._counts,
            )

    def check_integrity(self) -> None:
        """Prove the tables; takes time with the number of entries.

        Raises:
            IntegrityError: blocks, keys, pins or counts do not agree.
        """
        with self._changing():
            self._reclaim_dead()
            self._directory.check_integrity()

    def close(self) -> None:
        """Leave: drop own pins and half-written entries. No call may be running or follow."""
        if self._members.own < 0:
            return
        with self._changing():
            self._directory.reclaim(self._members.own)
        self._members.close()
        self._mutex.close()
        del self._directory
        self._arena.close()

    def _open(self, folder: Path | None, *, recreate: bool) -> tuple[Arena, Directory]:
        """Map the arena and become a member of it."""
        if self._members.join() is None:
            raise CacheRefused(f"{folder}: {MAX_MEMBERS} processes have this store open already")
        if folder is None:
            arena = private_arena(self._layout)
        else:
            arena = open_arena(folder, self._layout, recreate=recreate)
        directory = Directory(arena)
        try:
            self._prove(arena, directory)
        except (IntegrityError, IndexError, OverflowError) as error:
            if folder is None or not recreate:
                raise CacheRefused(
                    f"{folder}/{ARENA_NAME}: its tables are damaged ({error}); remove it or ask "
                    "for it to be made anew"
                ) from error
            arena = create_arena(folder, self._layout)
            directory = Directory(arena)
        directory.join(self._members.own)
        return arena, directory

    def _prove(self, arena: Arena, directory: Directory) -> None:
        """Take back what the dead held and check the tables."""
        if int(arena.words[DIRTY]):
            directory.recover()
            arena.words[DIRTY] = 0
        for member in list(directory.joined_members()):
            if member == self._members.own or not self._members.is_alive(member):
                directory.reclaim(member)
        directory.check_integrity()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock; leave the tables marked if this process or block does not finish."""
        with self._mutex.held():
            if int(self._arena.words[DIRTY]):
                logger.warning("host cache tables were left half changed, recovered")
                self._directory.recover()
            self._arena.words[DIRTY] = 1
            yield
            self._arena.words[DIRTY] = 0

    def _is_there(self, key: bytes) -> bool:
        """Say whether a key needs no writing; a dead writer's rest is taken back."""
        entry = self._directory.find(key)
        if entry is None:
            return False
        if self._directory.is_ready(entry):
            self._directory.use(entry)
            return True
        writer = self._directory.writer_of(entry)
        if self._members.is_alive(writer):
            return True
        self._directory.reclaim(writer)
        return False

    def _claim(self, key: bytes, num_bytes: int, *, value: int) -> int | None:
        """Begin an entry, evicting as needed."""
        count = self._directory.blocks_for(num_bytes)
        if count > self._directory.num_free_blocks:
            self._reclaim_dead()
            num_evicted = self._directory.make_room(count)
            if num_evicted is None:
                self._counts["refused"] += 1
                return None
            self._counts["evictions"] += num_evicted
        return self._directory.claim(key, num_bytes, value=value, member=self._members.own)

    def _reclaim_dead(self) -> None:
        for member in list(self._directory.joined_members()):
            if not self._members.is_alive(member):
                self._directory.reclaim(member)

    def _parts(self, entry: int) -> list[memoryview]:
        """See the payload of an entry, piece by piece."""
        rest = self._directory.size_of(entry)
        parts = []
        for first, count in self._directory.pieces(entry):
            parts.append(self._arena.blocks(first, count, num_bytes=rest))
            rest -= len(parts[-1])
        return parts

    def _unpin(self, entry: int) -> None:
        if self._members.own < 0:
            return  # the store is closed: its pins are gone
        with self._changing():
            self._directory.unpin(entry, self._members.own)
