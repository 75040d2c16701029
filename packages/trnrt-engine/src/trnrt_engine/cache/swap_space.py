"""Host memory for the live bundles of preempted sequences, under a byte budget of its own.

Room is promised to a whole bundle before its first byte is copied, so nothing is ever evicted
here: what does not fit is computed again. Memory is taken when an entry is written and given back
when it is removed; an engine that never preempts takes none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trnrt_engine.cache.bytestore import Pinned, as_bytes, check_key, checksum, copy_chunks
from trnrt_engine.errors import IntegrityError


class SwapSpace:
    """A `CopyStore`; the copy thread puts and gets, the engine's thread does the rest."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.num_promised_bytes = 0
        self._entries: dict[bytes, tuple[NDArray[np.uint8], int]] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of what is stored."""
        return sum(content.nbytes for content, _ in list(self._entries.values()))

    def promise(self, num_bytes: int) -> bool:
        """Keep room for a bundle; False when there is not so much."""
        if self.num_promised_bytes + num_bytes > self.budget_bytes:
            return False
        self.num_promised_bytes += num_bytes
        return True

    def take_back(self, num_bytes: int) -> None:
        """End a promise; its entries must be removed."""
        self.num_promised_bytes -= num_bytes

    def put(self, key: bytes, chunks: Sequence[memoryview], *, value: int = 0) -> bool:
        """Store the concatenation of `chunks`, with its checksum."""
        check_key(key)
        sources = as_bytes(chunks)
        content = np.empty(sum(map(len, sources)), np.uint8)
        copy_chunks([content.data], sources)
        self._entries[key] = (content, checksum(key, [content.data]))
        return True

    def get(self, key: bytes) -> Pinned | None:
        """Return an entry whose checksum holds; None when there is none."""
        content, expected = self._entries.get(key, (None, 0))
        if content is None or checksum(key, [content.data]) != expected:
            return None
        return Pinned([content.data], lambda: None)

    def remove(self, key: bytes) -> None:
        """Drop an entry if it is there."""
        self._entries.pop(key, None)

    def check_integrity(self, promises: Sequence[int]) -> None:
        """Prove that what is promised is what bundles count on, and holds what is stored.

        Raises:
            IntegrityError: it does not.
        """
        if sum(promises) != self.num_promised_bytes:
            raise IntegrityError(
                f"bundles count on {sum(promises)} bytes of swap space, it promised "
                f"{self.num_promised_bytes}"
            )
        if not self.num_bytes <= self.num_promised_bytes <= self.budget_bytes:
            raise IntegrityError(
                f"swap space of {self.budget_bytes} bytes holds {self.num_bytes} and promised "
                f"{self.num_promised_bytes}"
            )
