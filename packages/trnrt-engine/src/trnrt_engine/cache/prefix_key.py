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


def chain_hash(parent: bytes, tokens: bytes) -> bytes:
    """Return the hash of a prefix: of the whole pages before it (`parent`) and its last page."""
    return blake2b(parent + tokens, digest_size=HASH_BYTES).digest()


class PrefixKey:
    """Token bytes and prefix hashes of one prompt, worked out when asked for and kept.

    The hash of a prefix depends on salt, tokens and page size. So a prompt that waits is hashed
    once, however often it asks for room.

    Attributes:
        num_tokens: of the prompt.
        last_grid: deepest position on the grid that leaves a token to compute; 0 if none does.
    """

    __slots__ = ("_data", "_hashes", "_pages", "last_grid", "num_tokens", "page_size")

    def __init__(self, token_ids: Sequence[int], *, salt: str, page_size: int) -> None:
        self._data = array("I", token_ids).tobytes()
        self._hashes = [root_hash(salt)]
        self._pages: list[bytes] = []
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

    def page(self, index: int) -> bytes:
        """Return the tokens of a whole page."""
        pages, size = self._pages, self.page_size * TOKEN_BYTES
        while len(pages) <= index:
            start = len(pages) * size
            pages.append(self._data[start : start + size])
        return pages[index]

    def page_hash(self, index: int) -> bytes:
        """Return the hash of the prefix that ends with whole page `index`."""
        hashes = self._hashes
        while len(hashes) <= index + 1:
            hashes.append(chain_hash(hashes[-1], self.page(len(hashes) - 1)))
        return hashes[index + 1]

    def span(self, start: int, end: int) -> bytes:
        """Return the tokens of positions [start, end)."""
        return self._data[start * TOKEN_BYTES : end * TOKEN_BYTES]

    def hash_at(self, position: int) -> bytes:
        """Return the hash of the first `position` tokens."""
        index, rest = divmod(position, self.page_size)
        if not rest:
            return self.page_hash(index - 1)
        return chain_hash(self.page_hash(index - 1), self.span(position - rest, position))
