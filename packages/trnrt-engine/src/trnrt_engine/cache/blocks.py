"""Which entry owns which block of an arena.

An entry owns any blocks, in ascending order of their numbers; that set is all there is to its
place, so nothing links blocks to each other and nothing can be half linked. Free space never
becomes unusable: an entry fits whenever enough blocks are free. Few pieces are preferred (the
smallest gap that holds all of it, else the largest gaps), because a piece can be read in place.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FREE = 0


class BlockTable:
    """The owner word of each block: `FREE` or the entry's number + 1.

    An entry's number is that of its first block, so it is unique as long as the entry lives.
    """

    def __init__(self, owner: NDArray[np.uint32]) -> None:
        self._owner = owner
        self._next = 0

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return len(self._owner)

    def count_used(self) -> int:
        """Count the blocks that have an owner."""
        return int(np.count_nonzero(self._owner))

    def find(self, count: int) -> NDArray[np.int64] | None:
        """Choose `count` free blocks, ascending; None when fewer are free."""
        start = self._next
        if start + count <= len(self._owner) and not self._owner[start : start + count].any():
            return np.arange(start, start + count)
        free = np.flatnonzero(self._owner == FREE)
        if len(free) < count:
            return None
        starts = np.concatenate(([0], np.flatnonzero(np.diff(free) != 1) + 1))
        sizes = np.diff(np.concatenate((starts, [len(free)])))
        fitting = np.flatnonzero(sizes >= count)
        if len(fitting):
            first = starts[fitting[np.argmin(sizes[fitting])]]
            return free[first : first + count]
        order = np.argsort(-sizes, kind="stable")
        num_gaps = int(np.searchsorted(np.cumsum(sizes[order]), count)) + 1
        gaps = [free[starts[gap] : starts[gap] + sizes[gap]] for gap in order[:num_gaps]]
        return np.sort(np.concatenate(gaps)[:count])

    def assign(self, blocks: NDArray[np.int64]) -> int:
        """Give free blocks to a new entry and return its number."""
        entry = int(blocks[0])
        self._owner[blocks] = entry + 1
        self._next = int(blocks[-1]) + 1
        return entry

    def of(self, entry: int, count: int) -> list[tuple[int, int]]:
        """List the pieces of an entry of `count` blocks: (first block, number of blocks)."""
        if (self._owner[entry : entry + count] == entry + 1).all():
            return [(entry, min(count, len(self._owner) - entry))]
        blocks = np.flatnonzero(self._owner[entry:] == entry + 1) + entry
        cuts = np.flatnonzero(np.diff(blocks) != 1) + 1
        return [(int(piece[0]), len(piece)) for piece in np.split(blocks, cuts) if len(piece)]

    def free(self, entry: int, count: int) -> int:
        """Take the blocks of an entry back and count them."""
        pieces = self.of(entry, count)
        for first, num in pieces:
            self._owner[first : first + num] = FREE
        return sum(num for _, num in pieces)

    def owners(self) -> NDArray[np.uint32]:
        """Copy the owner words."""
        return self._owner.copy()

    def sweep(self, is_live: NDArray[np.bool_]) -> None:
        """Free every block whose entry is not live, wherever the table stands."""
        entries = self._owner.astype(np.int64) - 1
        known = (entries >= 0) & (entries < len(is_live))
        lost = self._owner != FREE
        lost[known] = ~is_live[entries[known]]
        self._owner[lost] = FREE
