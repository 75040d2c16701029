"""Locks between the processes of a box that the kernel drops when a process dies.

All are `flock` on files of one folder. A lock belongs to the open file, so it is gone when
the last process that holds the descriptor is gone, however it ended. Descriptors are closed in
forked children: a child must not keep its parent alive in the eyes of others.
"""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_open_locks: weakref.WeakSet[FileLock] = weakref.WeakSet()


class FileLock:
    """An exclusive lock on one file, made if missing; excludes processes, not threads."""

    def __init__(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(path, flags, 0o600)
        _open_locks.add(self)

    def acquire(self) -> None:
        """Wait for the lock."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def try_acquire(self) -> bool:
        """Take the lock if nobody holds it."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        """Give the lock back."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the file, which gives the lock back; more than once is harmless."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _close_in_child() -> None:
    for lock in list(_open_locks):
        lock.close()


os.register_at_fork(after_in_child=_close_in_child)


class Mutex:
    """Excludes the threads of this process and, given a path, other processes."""

    def __init__(self, path: Path | None) -> None:
        self._threads = threading.Lock()
        self._file = None if path is None else FileLock(path)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock for a `with` block."""
        with self._threads:
            if self._file is None:
                yield
                return
            self._file.acquire()
            try:
                yield
            finally:
                self._file.release()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class Members:
    """Who takes part, numbered 0 .. count - 1; each member holds a file lock while it lives.

    Without a folder the one member is 0. Call everything under the folder's `Mutex`.
    """

    def __init__(self, folder: Path | None, *, count: int) -> None:
        self.count = count
        self._folder = folder
        self._locks: dict[int, FileLock] = {}
        self.own = -1

    def join(self) -> int | None:
        """Become a member whose number no living process holds; None when all are held."""
        for number in range(self.count if self._folder is not None else 1):
            if self._folder is None or self._lock(number).try_acquire():
                self.own = number
                return number
        return None

    def is_alive(self, number: int) -> bool:
        """Say whether a living process holds this number."""
        if number == self.own:
            return True
        if self._folder is None:
            return False
        lock = self._lock(number)
        if not lock.try_acquire():
            return True
        lock.release()
        return False

    def close(self) -> None:
        """Leave: the own number is free again."""
        self.own = -1
        for lock in self._locks.values():
            lock.close()
        self._locks.clear()

    def _lock(self, number: int) -> FileLock:
        lock = self._locks.get(number)
        if lock is None:
            if self._folder is None:
                raise ValueError("a private store has no member files")
            lock = self._locks[number] = FileLock(self._folder / f"member-{number:02d}.lock")
        return lock
