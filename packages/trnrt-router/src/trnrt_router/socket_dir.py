"""A folder for the sockets of one `serve`, and the removal of those that were left behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

# The kernel's limit for a Unix socket's path is 107 bytes.
MAX_BASE_CHARS = 80
PREFIX, NEW_PREFIX = "trnrt-serve-", "trnrt-new-"
LOCK_NAME = "lock"


@contextlib.contextmanager
def private_socket_dir() -> Iterator[Path]:
    """Make a folder only this user can enter; it goes at the end.

    A process that is killed leaves its folder, but not the lock in it: the next one removes what
    nobody has locked. A folder gets its final name when its lock is held.
    """
    base = Path(tempfile.gettempdir())
    if len(str(base)) >= MAX_BASE_CHARS:
        base = Path("/tmp")
    _remove_orphans(base)
    new = Path(tempfile.mkdtemp(prefix=NEW_PREFIX, dir=base))
    with (new / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = new.rename(base / new.name.replace(NEW_PREFIX, PREFIX))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_orphans(base: Path) -> None:
    for folder in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid != os.getuid():
                continue
            with (folder / LOCK_NAME).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while it is in use
                shutil.rmtree(folder)
