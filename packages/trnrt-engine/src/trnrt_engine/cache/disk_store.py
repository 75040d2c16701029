"""Bytes in files, kept over a restart; several processes may share the folder.

A put writes a temporary file, syncs it and renames it: a file under an entry's name is whole,
whatever dies when. The name's own durability is left to the file system (losing an entry is a
miss). Files being written are not counted before they are renamed, so the folder may exceed the
budget for a moment by what is in flight.

A get reads the payload into memory of its own, verified; the file may be evicted meanwhile.
When the system refuses a write (full disk, read-only folder) only storing stops: one warning,
counted, tried again later.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from trnrt_engine.cache.bytestore import (
    CacheRefused,
    Pinned,
    StoreStats,
    as_bytes,
    check_key,
    checksum,
)
from trnrt_engine.cache.disk_folder import DiskFolder
from trnrt_engine.cache.disk_format import (
    HEADER_BYTES,
    TEMPORARY_SUFFIX,
    BadFile,
    Header,
    open_entry,
    path_of,
)
from trnrt_engine.cache.disk_index import DiskFile, DiskIndex
from trnrt_engine.errors import IntegrityError

logger = logging.getLogger(__name__)

_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_MAX_BUFFERS = 512
"""Buffers given to one `writev`; the system takes 1024."""


class DiskStore:
    """A `ByteStore` in a folder.

    Args:
        folder: made if missing. Files in it that are not whole entries of this format are named
            in a warning; those with our suffix or magic are removed, others left alone.
        budget_bytes: bytes of all files together, headers included.
        retry_s: how long nothing is stored after the system refused a write.
        clock: seconds, for `retry_s`.

    Raises:
        CacheRefused: `folder` is something else.
    """

    def __init__(
        self,
        folder: Path,
        budget_bytes: int,
        *,
        retry_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budget_bytes = budget_bytes
        self._retry_s = retry_s
        self._clock = clock
        self._index = DiskIndex()
        self._folder = DiskFolder(folder, self._index)
        self._counts = dict.fromkeys(
            ("hits", "misses", "puts", "refused", "evictions", "failures"), 0
        )
        self._stopped_until_s: float | None = None
        self._last_ns = 0
        self._serial = itertools.count()
        if folder.exists() and not folder.is_dir():
            raise CacheRefused(f"{folder}: is not a folder")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._stop(error)
        with self._folder.held():
            self._folder.look_at_top()
            self._folder.refresh()
            try:
                self._make_room(0)
            except OSError as error:
                self._stop(error)

    @property
    def budget_bytes(self) -> int:
        """Bytes the files may take together."""
        return self._budget_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of the files known; another process's newest are seen by `put` and `stats`."""
        return self._index.num_bytes

    def put(self, key: bytes, chunks: Sequence[memoryview], *, value: int = 0) -> bool:
        """Store the concatenation of `chunks`.

        Entries of the lowest `value` are evicted first, among equals the least recently used.

        Returns:
            True when it is stored or was before; False when it is larger than the budget or the
            system refuses writes for now.
        """
        check_key(key)
        sources = as_bytes(chunks)
        num_bytes = sum(map(len, sources))
        size = HEADER_BYTES + num_bytes
        if self.touch(key):
            return True
        if size > self._budget_bytes or not self._may_write():
            self._counts["refused"] += 1
            return False
        header = Header(key=key, num_bytes=num_bytes, value=value, crc=checksum(key, sources))
        try:
            self._write(header, sources)
        except OSError as error:
            self._counts["refused"] += 1
            self._stop(error)
            return False
        self._counts["puts"] += 1
        if self._stopped_until_s is not None:
            self._stopped_until_s = None
            logger.info("disk cache stores again folder=%s", self._folder.path)
        return True

    def get(self, key: bytes) -> Pinned | None:
        """Read an entry; None when there is none or it is damaged, which removes it."""
        path = path_of(self._folder.path, key)
        try:
            fd, header = open_entry(path)
            try:
                parts = _read(fd, header.num_bytes)
            finally:
                os.close(fd)
            if checksum(key, parts) != header.crc:
                raise BadFile("its bytes are damaged")
        except BadFile as defect:
            with self._folder.held():
                self._folder.discard(path, str(defect))
                self._index.drop(key)
                self._counts["misses"] += 1
            return None
        except OSError as error:
            with self._folder.held():
                self._index.drop(key)
                self._counts["misses"] += 1
                if not isinstance(error, FileNotFoundError):
                    self._counts["failures"] += 1
                    logger.warning("disk cache cannot read %s: %s", path, error)
            return None
        self.touch(key)
        with self._folder.held():
            self._counts["hits"] += 1
        return Pinned(parts, _nothing)

    def __contains__(self, key: bytes) -> bool:
        return path_of(self._folder.path, key).exists()

    def touch(self, key: bytes, *, value: int | None = None) -> bool:
        """Count as used now; False when it is not there.

        A new `value` holds in this process; the file keeps the one it was written with.
        """
        with self._folder.held():
            now_ns = self._now_ns()
            try:
                os.utime(path_of(self._folder.path, key), ns=(now_ns, now_ns))
            except FileNotFoundError:
                self._index.drop(key)
                return False
            except OSError:
                # A folder that cannot be written: the order is kept in memory only.
                if key not in self._index:
                    return key in self
            self._index.use(key, last_use_ns=now_ns, value=value)
            return True

    def remove(self, key: bytes) -> bool:
        """Drop an entry; False when it is not there or cannot be removed."""
        with self._folder.held():
            return self._unlink(key)

    def flush(self) -> int:
        """Drop all entries, other processes' too, and count them."""
        with self._folder.held():
            self._folder.refresh()
            return sum(self._unlink(file.key) for file in self._index)

    def forget(self, suffix: bytes) -> int:
        """Drop the entries whose key ends so, other processes' too, and count them."""
        with self._folder.held():
            self._folder.refresh()
            keys = [file.key for file in self._index if file.key.endswith(suffix)]
            return sum(self._unlink(key) for key in keys)

    def stats(self) -> StoreStats:
        """Count what is in the folder, and what this process asked."""
        with self._folder.held():
            self._folder.refresh()
            return StoreStats(
                num_entries=len(self._index),
                num_bytes=self.num_bytes,
                budget_bytes=self._budget_bytes,
                damaged=self._folder.num_damaged,
                **self._counts,
            )

    def check_integrity(self) -> None:
        """Prove that the index is what lies in the folder.

        Raises:
            IntegrityError: a file is missing or has another size, or a count is wrong.
        """
        with self._folder.held():
            self._folder.refresh()
            for file in self._index:
                path = path_of(self._folder.path, file.key)
                size = path.stat().st_size if path.exists() else None
                if size != file.size:
                    raise IntegrityError(f"{path} has size {size}, known is {file.size}")
            if sum(file.size for file in self._index) != self.num_bytes:
                raise IntegrityError(f"{self.num_bytes} bytes counted, files have others")

    def close(self) -> None:
        """Leave the folder; the entries stay."""
        self._folder.close()

    def _write(self, header: Header, sources: Sequence[memoryview]) -> None:
        """Write, sync, make room, rename."""
        size = HEADER_BYTES + header.num_bytes
        path = path_of(self._folder.path, header.key)
        temporary = path.with_name(
            f"{header.key.hex()}.{os.getpid()}.{next(self._serial)}{TEMPORARY_SUFFIX}"
        )
        with self._folder.held():  # whoever looks for orphans sees the file with its lock only
            self._folder.refresh()
            self._make_room(size)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(temporary, _CREATE_FLAGS, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            _write_all(fd, [memoryview(header.pack()), *sources])
            os.fsync(fd)
            with self._folder.held():
                self._folder.refresh()
                self._make_room(size)
                now_ns = self._now_ns()
                os.utime(fd, ns=(now_ns, now_ns))
                os.replace(temporary, path)
                self._index.add(DiskFile(header.key, size, header.value, now_ns))
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)

    def _make_room(self, size: int) -> None:
        """Evict until `size` more bytes fit.

        Raises:
            OSError: a file cannot be removed.
        """
        while self.num_bytes + size > self._budget_bytes:
            file = self._index.first_to_go()
            if file is None:
                return
            path = path_of(self._folder.path, file.key)
            try:
                used_ns = path.stat().st_mtime_ns
            except OSError:
                used_ns = 0
            if used_ns > file.last_use_ns:  # another process used it
                self._index.use(file.key, last_use_ns=used_ns)
                continue
            path.unlink(missing_ok=True)
            self._index.drop(file.key)
            self._counts["evictions"] += 1

    def _unlink(self, key: bytes) -> bool:
        try:
            path_of(self._folder.path, key).unlink()
        except FileNotFoundError:
            self._index.drop(key)
            return False
        except OSError as error:
            self._counts["failures"] += 1
            logger.warning("disk cache cannot remove an entry: %s", error)
            return False
        self._index.drop(key)
        return True

    def _may_write(self) -> bool:
        return self._stopped_until_s is None or self._clock() >= self._stopped_until_s

    def _stop(self, error: OSError) -> None:
        """Store nothing for a while; warn once until something is stored again."""
        self._counts["failures"] += 1
        if self._stopped_until_s is None:
            logger.warning(
                "disk cache stores nothing for now, tried again every %.0f s folder=%s: %s",
                self._retry_s,
                self._folder.path,
                error,
            )
        self._stopped_until_s = self._clock() + self._retry_s

    def _now_ns(self) -> int:
        """Read the wall clock, never twice the same."""
        self._last_ns = max(time.time_ns(), self._last_ns + 1)
        return self._last_ns


def _write_all(fd: int, buffers: Sequence[memoryview]) -> None:
    """Write all bytes of all buffers.

    Raises:
        OSError: the system takes no more.
    """
    rest = [buffer for buffer in buffers if len(buffer)]
    while rest:
        written = os.writev(fd, rest[:_MAX_BUFFERS])
        done = 0
        while done < len(rest) and written >= len(rest[done]):
            written -= len(rest[done])
            done += 1
        rest = rest[done:]
        if written:
            rest[0] = rest[0][written:]


def _read(fd: int, num_bytes: int) -> list[memoryview]:
    """Read the payload into memory of its own."""
    buffer = np.empty(num_bytes, np.uint8).data
    filled = 0
    while filled < num_bytes:
        count = os.preadv(fd, [buffer[filled:]], HEADER_BYTES + filled)
        if count == 0:
            raise BadFile(f"ends after {filled} of {num_bytes} bytes")
        filled += count
    return [buffer]


def _nothing() -> None:
    pass
