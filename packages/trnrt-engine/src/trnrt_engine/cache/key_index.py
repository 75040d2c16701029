"""From a key to the number of its entry: a hash table in shared memory.

Open addressing with linear probing; cells hold the entry's number + 1, keys stay in the
entries' records. A removal moves later cells up, so there are no tombstones and a lookup never
gets slower with age. A table left half changed is rebuilt from the records.
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

from trnrt_engine.errors import IntegrityError

_EMPTY = 0


class KeyIndex:
    """Find, insert and delete; `keys` and `key_bytes` are the entries' records."""

    def __init__(
        self,
        cells: NDArray[np.uint32],
        *,
        keys: NDArray[np.uint8],
        key_bytes: NDArray[np.uint32],
    ) -> None:
        self._cells = cells
        self._mask = len(cells) - 1
        self._keys = keys
        self._key_bytes = key_bytes

    def key_of(self, entry: int) -> bytes:
        """Read an entry's key."""
        return self._keys[entry, : self._key_bytes[entry]].tobytes()

    def find(self, key: bytes) -> int | None:
        """Look a key up; None when it is not there."""
        cell = self._cell_of(key)
        return None if cell is None else int(self._cells[cell]) - 1

    def insert(self, entry: int) -> None:
        """Add an entry whose record holds its key; the key must not be there yet."""
        cell = zlib.crc32(self.key_of(entry)) & self._mask
        while self._cells[cell] != _EMPTY:
            cell = (cell + 1) & self._mask
        self._cells[cell] = entry + 1

    def delete(self, entry: int) -> None:
        """Take an entry out, if it is in."""
        hole = self._cell_of(self.key_of(entry))
        if hole is None or int(self._cells[hole]) != entry + 1:
            return
        cell = hole
        while True:
            cell = (cell + 1) & self._mask
            held = int(self._cells[cell])
            if held == _EMPTY:
                break
            home = zlib.crc32(self.key_of(held - 1)) & self._mask
            if (cell - home) & self._mask >= (cell - hole) & self._mask:
                self._cells[hole] = held
                hole = cell
        self._cells[hole] = _EMPTY

    def rebuild(self, entries: NDArray[np.int64]) -> None:
        """Forget all cells and insert these entries."""
        self._cells[:] = _EMPTY
        for entry in entries:
            self.insert(int(entry))

    def __len__(self) -> int:
        return int(np.count_nonzero(self._cells))

    def _cell_of(self, key: bytes) -> int | None:
        cell = zlib.crc32(key) & self._mask
        for _ in range(len(self._cells)):
            held = int(self._cells[cell])
            if held == _EMPTY:
                return None
            if held > len(self._keys):
                raise IntegrityError(f"the key index names entry {held - 1}, which cannot exist")
            if self.key_of(held - 1) == key:
                return cell
            cell = (cell + 1) & self._mask
        raise IntegrityError("the key index has no empty cell")
