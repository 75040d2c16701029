"""A prompt as the tree sees it: bytes of pages, and the hash of each prefix on the grid."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from trnrt_kernels.serving import GRID

HASH_BYTES = 16
TOKEN_BYTES = 4
PAGES_AT_ONCE = 32


def root_hash(salt: str) -> bytes:
    """Return the hash every prefix of a salt starts from."""
    return blake2b(salt.encode(), digest_size=HASH_BYTES, person=b"salt").digest()


def chain_hash(parent: bytes, tokens: bytes | memoryview) -> bytes:
    """Return the hash of a prefix: of its last page, keyed by that of the pages before it."""
    return blake2b(tokens, digest_size=HASH_BYTES, key=parent).digest()


def pack_ids(token_ids: Sequence[int]) -> array[int]:
    """Return ids as the tree compares and hashes them; what is packed already is not copied.

    Raises:
        OverflowError, TypeError: one of them is no unsigned 32-bit integer.
    """
    if isinstance(token_ids, array) and token_ids.typecode == "I":
        return token_ids
    return array("I", token_ids)


class PrefixKey:
    """Token bytes and prefix hashes of one prompt, worked out when asked for and kept.

    The hash of a prefix depends on salt, tokens and page size. So a prompt that waits is hashed
    once, however often it asks for room.

    Attributes:
        data: the prompt as bytes.
        hashes: of the salt alone and of the prefixes of whole pages, as far as worked out.
        num_tokens: of the prompt.
        last_grid: deepest position on the grid that leaves a token to compute; 0 if none does.
    """

    __slots__ = ("_view", "data", "hashes", "last_grid", "num_tokens", "page_size")

    def __init__(self, token_ids: Sequence[int], *, salt: str, page_size: int) -> None:
        self.data = pack_ids(token_ids).tobytes()
        self._view = memoryview(self.data)  # hashed without being copied
        self.hashes = [root_hash(salt)]
        self.num_tokens = len(self.data) // TOKEN_BYTES
        self.last_grid = (self.num_tokens - 1) // GRID * GRID
        self.page_size = page_size

    @property
    def root_hash(self) -> bytes:
        """Hash of no tokens: of the salt alone."""
        return self.hashes[0]

    @property
    def num_pages(self) -> int:
        """Whole pages of the prompt."""
        return self.num_tokens // self.page_size

    def page_hash(self, index: int) -> bytes:
        """Return the hash of the prefix that ends with whole page `index`."""
        if index + 1 >= len(self.hashes):
            self._hash_pages(index + 1)
        return self.hashes[index + 1]

    def _hash_pages(self, num_pages: int) -> None:
        """Hash so many pages, or some more: a prompt is read page after page."""
        hashes, view, size = self.hashes, self._view, self.page_size * TOKEN_BYTES
        parent = hashes[-1]
        last = min(max(num_pages, len(hashes) + PAGES_AT_ONCE), self.num_pages)
        for start in range((len(hashes) - 1) * size, last * size, size):
            parent = chain_hash(parent, view[start : start + size])
            hashes.append(parent)

    def span(self, start: int, end: int) -> bytes:
        """Return the tokens of positions [start, end)."""
        return self.data[start * TOKEN_BYTES : end * TOKEN_BYTES]

    def hash_at(self, position: int) -> bytes:
        """Return the hash of the first `position` tokens."""
        index, rest = divmod(position, self.page_size)
        if not rest:
            return self.page_hash(index - 1)
        return chain_hash(self.page_hash(index - 1), self.span(position - rest, position))
