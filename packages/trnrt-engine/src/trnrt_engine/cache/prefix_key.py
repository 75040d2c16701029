"""A prompt as the tree sees it: bytes of pages, and the hash of each prefix on the grid."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from trnrt_kernels.serving import GRID

HASH_BYTES = 16
TOKEN_BYTES = 4


def root_hash(salt: str) -> bytes:
    """Return the hash every prefix of a salt starts from."""
    return blake2b(salt.encode(), digest_size=HASH_BYTES, person=b"salt").digest()


def chain_hash(parent: bytes, tokens: bytes | memoryview) -> bytes:
    """Return the hash of a prefix: of its last page, keyed by that of the pages before it."""
    return blake2b(tokens, digest_size=HASH_BYTES, key=parent).digest()


class PrefixKey:
    """Token bytes and prefix hashes of one prompt, worked out when asked for and kept.

    The hash of a prefix depends on salt, tokens and page size. So a prompt that waits is hashed
    once, however often it asks for room.

    Attributes:
        num_tokens: of the prompt.
        last_grid: deepest position on the grid that leaves a token to compute; 0 if none does.
    """

    __slots__ = ("_data", "_hashes", "_view", "last_grid", "num_tokens", "page_size")

    def __init__(self, token_ids: Sequence[int], *, salt: str, page_size: int) -> None:
        self._data = array("I", token_ids).tobytes()
        self._view = memoryview(self._data)  # hashed without being copied
        self._hashes = [root_hash(salt)]
        self.num_tokens = len(token_ids)
        self.last_grid = (self.num_tokens - 1) // GRID * GRID
        self.page_size = page_size

    @property
    def root_hash(self) -> bytes:
        """Hash of no tokens: of the salt alone."""
        return self._hashes[0]

    @property
    def num_pages(self) -> int:
        """Whole pages of the prompt."""
        return self.num_tokens // self.page_size

    def page_hash(self, index: int) -> bytes:
        """Return the hash of the prefix that ends with whole page `index`."""
        hashes, size = self._hashes, self.page_size * TOKEN_BYTES
        for page in range(len(hashes) - 1, index + 1):
            hashes.append(chain_hash(hashes[-1], self._view[page * size : (page + 1) * size]))
        return hashes[index + 1]

    def holds(self, tokens: bytes, start: int) -> bool:
        """Say whether the prompt has these tokens at position `start`."""
        return self._data.startswith(tokens, start * TOKEN_BYTES)

    def span(self, start: int, end: int) -> bytes:
        """Return the tokens of positions [start, end)."""
        return self._data[start * TOKEN_BYTES : end * TOKEN_BYTES]

    def hash_at(self, position: int) -> bytes:
        """Return the hash of the first `position` tokens."""
        index, rest = divmod(position, self.page_size)
        if not rest:
            return self.page_hash(index - 1)
        return chain_hash(self.page_hash(index - 1), self.span(position - rest, position))
