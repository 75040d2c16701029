"""The folder of a disk store: what lies in it, what does not belong, who may change it now."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trnrt_engine.cache.disk_format import (
    HEADER_BYTES,
    NUM_FANS,
    SUFFIX,
    TEMPORARY_SUFFIX,
    BadFile,
    has_our_magic,
    open_entry,
)
from trnrt_engine.cache.disk_index import DiskFile, DiskIndex
from trnrt_engine.cache.locks import FileLock

logger = logging.getLogger(__name__)

_LOCK_NAME = "store.lock"
_NAMED_FILES = 20
_CLOCK_TICK_NS = 50_000_000
"""A folder changed less than this ago may change again under the same time stamp."""


@dataclass(slots=True)
class Finding:
    """A file that does not belong: what is wrong with it and whether it was removed."""

    path: Path
    reason: str
    is_removed: bool


class DiskFolder:
    """Bring a `DiskIndex` up to date with a folder that other processes change too."""

    def __init__(self, folder: Path, index: DiskIndex) -> None:
        self.path = folder
        self.num_damaged = 0
        self._index = index
        self._fans = [folder / f"{fan:02x}" for fan in range(NUM_FANS)]
        self._seen_ns = [0] * NUM_FANS
        self._left_alone: set[Path] = set()
        self._threads = threading.Lock()
        self._lock: FileLock | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder against other threads and processes.

        Where no lock file can be made nothing else can be changed either.
        """
        with self._threads:
            if self._lock is None:
                try:
                    self._lock = FileLock(self.path / _LOCK_NAME)
                except OSError:
                    yield
                    return
            self._lock.acquire()
            try:
                yield
            finally:
                self._lock.release()

    def close(self) -> None:
        """Close the lock file."""
        with self._threads:
            if self._lock is not None:
                self._lock.close()
                self._lock = None

    def refresh(self) -> None:
        """See what came and went since the last call; call while held."""
        findings: list[Finding] = []
        present = {entry.name for entry in _scandir(self.path)}
        for fan, folder in enumerate(self._fans):
            changed_ns = 0
            if folder.name in present:
                with contextlib.suppress(OSError):
                    changed_ns = os.stat(folder).st_mtime_ns
            if changed_ns == self._seen_ns[fan]:
                continue
            is_settled = abs(time.time_ns() - changed_ns) > _CLOCK_TICK_NS
            self._seen_ns[fan] = changed_ns if is_settled else -1
            self._scan(fan, folder, findings)
        self._report(findings)

    def look_at_top(self) -> None:
        """Name what lies beside the folders of entries; once, when the store is opened."""
        findings: list[Finding] = []
        for entry in _scandir(self.path):
            is_fan = len(entry.name) == 2 and entry.is_dir(follow_symlinks=False)
            if not is_fan and entry.name != _LOCK_NAME:
                self._judge(Path(entry.path), "does not belong here", findings)
        self._report(findings)

    def discard(self, path: Path, reason: str) -> None:
        """Remove a file of ours that is found bad, and say so."""
        findings: list[Finding] = []
        self._judge(path, reason, findings)
        self._report(findings)

    def _scan(self, fan: int, folder: Path, findings: list[Finding]) -> None:
        present: set[bytes] = set()
        for entry in _scandir(folder):
            path = Path(entry.path)
            if entry.name.endswith(TEMPORARY_SUFFIX):
                if _is_orphan(path):
                    self._judge(path, "was left half written", findings)
            elif not entry.name.endswith(SUFFIX):
                self._judge(path, "does not belong here", findings)
            else:
                key = _key_in(entry.name)
                if key is None or not self._is_known(key, entry):
                    key = self._learn(path, findings)
                if key is not None:
                    present.add(key)
        for file in self._index.of_fan(fan):
            if file.key not in present:
                self._index.drop(file.key)

    def _is_known(self, key: bytes, entry: os.DirEntry[str]) -> bool:
        """Say whether the index has this very file; notes its last use."""
        file = self._index.get(key)
        if file is None:
            return False
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:
            return False
        self._index.use(key, last_use_ns=status.st_mtime_ns)
        return status.st_size == file.size

    def _learn(self, path: Path, findings: list[Finding]) -> bytes | None:
        """Read the header of a file not seen yet and add it to the index."""
        try:
            fd, header = open_entry(path)
        except BadFile as defect:
            self._judge(path, str(defect), findings)
            return None
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EMFILE, errno.ENFILE):
                self._judge(path, f"cannot be read ({error.strerror})", findings, is_readable=False)
            return None
        last_use_ns = os.fstat(fd).st_mtime_ns
        os.close(fd)
        size = HEADER_BYTES + header.num_bytes
        self._index.add(
            DiskFile(key=header.key, size=size, value=header.value, last_use_ns=last_use_ns)
        )
        return header.key

    def _judge(
        self, path: Path, reason: str, findings: list[Finding], *, is_readable: bool = True
    ) -> None:
        """Remove a bad file if it is ours by suffix or content; leave anything else."""
        if path in self._left_alone:
            return
        is_ours = is_readable and (
            path.name.endswith((SUFFIX, TEMPORARY_SUFFIX)) or has_our_magic(path)
        )
        is_removed = False
        if is_ours:
            try:
                path.unlink(missing_ok=True)
                is_removed = True
            except OSError as error:
                reason = f"{reason}; cannot be removed ({error.strerror})"
        if not is_removed:
            self._left_alone.add(path)
        self.num_damaged += is_ours
        findings.append(Finding(path, reason, is_removed))

    def _report(self, findings: list[Finding]) -> None:
        if not findings:
            return
        named = "; ".join(
            f"{found.path} {found.reason} ({'removed' if found.is_removed else 'left alone'})"
            for found in findings[:_NAMED_FILES]
        )
        more = len(findings) - _NAMED_FILES
        logger.warning(
            "disk cache skips %d files: %s%s",
            len(findings),
            named,
            f"; and {more} more" if more > 0 else "",
        )


def _scandir(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _key_in(name: str) -> bytes | None:
    try:
        return bytes.fromhex(name.removesuffix(SUFFIX))
    except ValueError:
        return None


def _is_orphan(path: Path) -> bool:
    """Say whether nobody writes a temporary file: its writer holds a lock on it."""
    try:
        lock = FileLock(path)
    except OSError:
        return False
    try:
        return lock.try_acquire()
    finally:
        lock.close()
