"""What every store of bytes below the device offers, and what they share.

A store maps a key (16 to 64 bytes) to immutable bytes. It knows nothing of tensors, pages or
trees. Losing an entry costs a recomputation; returning wrong bytes would cost an answer, so
every entry carries a checksum that `get` verifies.

The checksum is `zlib.crc32` over key, length and payload. What it must find is accident:
damaged memory or disk blocks, truncation, an entry that lies under another's key. It finds
every burst of up to 32 bits and misses other damage once in 2**32. On one core of an AMD EPYC
(zlib with PCLMULQDQ) it runs at 3.4 GB/s, `hashlib.blake2b(digest_size=16)` at 0.75 GB/s, a
plain copy at 6.5 GB/s: a state set of 142 MB takes 42 ms instead of 190 ms. Nobody is kept out
by either: who can write a store's files can write their checksums.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import numpy as np

from trnrt_engine.errors import TrnrtEngineError

MIN_KEY_BYTES = 16
MAX_KEY_BYTES = 64

_UNLOCKED_COPY_BYTES = 256 * 1024
"""From this size on a copy runs without the interpreter lock; below, switching costs more."""


class CacheRefused(TrnrtEngineError, ValueError):
    """An arena file or a cache folder is not ours, of another format, or damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """What a store holds, and what this process asked of it since it was opened.

    Fields:
        num_bytes: bytes counted against the budget.
        refused: puts that found no room (host) or were not tried or failed (disk).
        damaged: entries removed because their checksum or header did not hold.
        failures: operations the system refused: a full disk, a read-only folder.
    """

    num_entries: int
    num_bytes: int
    budget_bytes: int
    hits: int
    misses: int
    puts: int
    refused: int
    evictions: int
    damaged: int
    failures: int


class Pinned:
    """The bytes of one entry, valid until `release`; a context manager.

    A buffer taken from `view` or `parts` (a tensor, an array) must not be read after `release`.
    """

    def __init__(self, parts: Sequence[memoryview], release: Callable[[], None]) -> None:
        self._parts = tuple(part.toreadonly() for part in parts)
        self._release: Callable[[], None] | None = release
        self._view: memoryview | None = None
        self.num_bytes = sum(map(len, self._parts))

    @property
    def parts(self) -> tuple[memoryview, ...]:
        """The bytes as they lie: read-only pieces in order, never a copy."""
        return self._parts

    @property
    def view(self) -> memoryview:
        """The bytes as one read-only piece; gathered into a private copy if they are in several."""
        if self._view is None:
            if len(self._parts) == 1:
                self._view = self._parts[0]
            else:
                whole = np.empty(self.num_bytes, np.uint8).data
                copy_chunks([whole], self._parts)
                self._view = whole.toreadonly()
        return self._view

    def copy_into(self, buffers: Sequence[memoryview]) -> None:
        """Fill writable `buffers` in order, the inverse of `put`.

        Raises:
            ValueError: they are not `num_bytes` long together.
        """
        copy_chunks(buffers, self._parts)

    def release(self) -> None:
        """Give the entry free for eviction; more than once is harmless."""
        release, self._release = self._release, None
        if release is None:
            return
        for view in (*self._parts, *([self._view] if self._view is not None else [])):
            # Refused while an array or a tensor over it exists; its owner must not read it.
            with contextlib.suppress(BufferError):
                view.release()
        self._parts, self._view = (), None
        release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class CopyStore(Protocol):
    """What the copy threads ask of a store."""

    def put(self, key: bytes, chunks: Sequence[memoryview], *, value: int = 0) -> bool:
        """Store the concatenation of `chunks`; True when it is there, also if it was before.

        Where a store evicts, entries of the lowest `value` go first, among equals the least
        recently used.
        """

    def get(self, key: bytes) -> Pinned | None:
        """Pin an entry whose checksum holds; None when there is none."""


class ByteStore(CopyStore, Protocol):
    """A store of immutable byte strings under one byte budget."""

    @property
    def budget_bytes(self) -> int: ...

    @property
    def num_bytes(self) -> int: ...

    def __contains__(self, key: bytes) -> bool: ...

    def touch(self, key: bytes, *, value: int | None = None) -> bool:
        """Count as used now, with a new value if given; False when it is not there."""

    def remove(self, key: bytes) -> bool:
        """Drop an entry; False when it is not there."""

    def flush(self) -> int:
        """Drop all entries and count them."""

    def forget(self, suffix: bytes) -> int:
        """Drop the entries whose key ends so and count them."""

    def stats(self) -> StoreStats: ...

    def check_integrity(self) -> None:
        """Prove that what is stored and what is counted agree.

        Raises:
            IntegrityError: they do not.
        """

    def close(self) -> None: ...


def check_key(key: bytes) -> None:
    """Raise `ValueError` unless `key` has a length that stores accept."""
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise ValueError(
            f"key of {len(key)} bytes; a store takes {MIN_KEY_BYTES} to {MAX_KEY_BYTES}"
        )


def checksum(key: bytes, parts: Sequence[memoryview]) -> int:
    """Sum over key, length and payload, 32 bits."""
    total = sum(map(len, parts))
    crc = zlib.crc32(total.to_bytes(8, "little"), zlib.crc32(key))
    for part in parts:
        crc = zlib.crc32(part, crc)
    return crc


def as_bytes(chunks: Sequence[memoryview]) -> list[memoryview]:
    """See contiguous buffers of any element type as bytes."""
    return [memoryview(chunk).cast("B") for chunk in chunks]


def copy_chunks(destinations: Sequence[memoryview], sources: Sequence[memoryview]) -> None:
    """Copy the concatenation of `sources` onto that of `destinations`.

    Raises:
        ValueError: the lengths differ.
    """
    targets, origins = as_bytes(destinations), as_bytes(sources)
    num_target, num_origin = sum(map(len, targets)), sum(map(len, origins))
    if num_target != num_origin:
        raise ValueError(f"copying {num_origin} bytes into buffers of {num_target}")
    rest = iter(targets)
    target, filled = memoryview(b""), 0
    for origin in origins:
        taken = 0
        while taken < len(origin):
            while filled == len(target):
                target, filled = next(rest), 0
            count = min(len(origin) - taken, len(target) - filled)
            _copy(target[filled : filled + count], origin[taken : taken + count])
            taken += count
            filled += count


def _copy(target: memoryview, origin: memoryview) -> None:
    if len(origin) < _UNLOCKED_COPY_BYTES:
        target[:] = origin
    else:
        np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(origin, np.uint8))
