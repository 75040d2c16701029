"""What lies below the device: one entry per page, one per bundle's states.

An entry is a header, the tokens of its page (none for states), then the bytes of the device in
the order of `DeviceBytes`. The key says what it is, for whose numbers and for which salt; the
header repeats it, and whoever loads an entry compares every field: a hash alone proves nothing.

    key     prefix hash (16) | kind (1) | cache_id (32) | salt (15)
    header  magic, format version, kind, parts, start, position, prefix hash, cache_id

The last page of a bundle that ends inside of it is an entry of its own, the head of the page up to
there: its owner may still be writing behind. The states of a live bundle are an entry of another
kind: with the open pools, with what the sampler remembers, and with the position from which on they
are in decode form.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from trnrt_engine.cache.bundles import GRID_PARTS, LIVE_PARTS, PAGE_PARTS, Bundle, Part
from trnrt_engine.cache.prefix_key import TOKEN_BYTES, PrefixKey
from trnrt_engine.cache.radix import Node

FORMAT_VERSION = 1
CACHE_ID_BYTES = 32
SALT_BYTES = 15

_MAGIC = b"TRNB"
_HEADER_NAMES = (
    *("magic", "format version", "kind", "parts", "number of tokens", "start"),
    *("position", "prefix hash", "cache_id"),
)
_HEADER = struct.Struct("<4sHcxIIQQ16s32s")


class EntryKind(Enum):
    """What an entry holds."""

    PAGE = b"P"
    STATES = b"S"
    LIVE = b"L"

    @property
    def parts(self) -> Part:
        """Parts of a bundle in it; with its pages, states are all of a grid or live bundle."""
        match self:
            case EntryKind.PAGE:
                return PAGE_PARTS
            case EntryKind.STATES:
                return GRID_PARTS ^ PAGE_PARTS
            case EntryKind.LIVE:
                return LIVE_PARTS ^ PAGE_PARTS


class DeviceBytes(Protocol):
    """The bytes of pages and slots on the device, shared with it, in a fixed order."""

    def page(self, page_id: int, *, num_tokens: int) -> list[memoryview]:
        """The head of a page that holds `num_tokens` tokens, rounded up to the grid."""

    def states(self, slot: int) -> list[memoryview]:
        """The recurrent states and conv tails of a slot."""

    def live(self, slot: int) -> list[memoryview]:
        """Those of a sequence's slot, its open pools and its row of the sampling state."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry.

    Fields:
        start, position: it holds positions [start, position), or the states after `position`; of a
            live bundle's states, `start` is where their decode form begins.
        prefix_hash: of the tokens up to `position`.
        tokens: of a page, as bytes; empty for states.
        source: id of the page or slot on the device that holds it or is to hold it.
    """

    kind: EntryKind
    start: int
    position: int
    prefix_hash: bytes
    tokens: bytes
    source: int

    def key(self, cache_id: bytes, root_hash: bytes) -> bytes:
        """Return its name in a store."""
        return entry_key(self.kind, self.prefix_hash, cache_id=cache_id, root_hash=root_hash)

    def header(self, cache_id: bytes) -> bytes:
        """Return what precedes the bytes of the device."""
        head = _HEADER.pack(
            _MAGIC,
            FORMAT_VERSION,
            self.kind.value,
            self.kind.parts,
            len(self.tokens) // TOKEN_BYTES,
            self.start,
            self.position,
            self.prefix_hash,
            cache_id,
        )
        return head + self.tokens

    def defect(self, header: bytes, cache_id: bytes) -> str | None:
        """Say what a header that was read does not hold of this entry; None if all of it."""
        expected = self.header(cache_id)
        if header == expected:
            return None
        if len(header) < _HEADER.size:
            return "it has no header"
        found, wanted = _HEADER.unpack_from(header), _HEADER.unpack_from(expected)
        for name, given, due in zip(_HEADER_NAMES, found, wanted, strict=True):
            if given != due:
                return f"its {name} is {given!r}, not {due!r}"
        return "its tokens are others"

    def buffers(self, device: DeviceBytes) -> list[memoryview]:
        """Return where its bytes lie on the device."""
        match self.kind:
            case EntryKind.PAGE:
                return device.page(self.source, num_tokens=self.position - self.start)
            case EntryKind.STATES:
                return device.states(self.source)
            case EntryKind.LIVE:
                return device.live(self.source)


def entry_key(kind: EntryKind, prefix_hash: bytes, *, cache_id: bytes, root_hash: bytes) -> bytes:
    """Return the name of an entry in a store; entries of a salt end alike."""
    return prefix_hash + kind.value + cache_id + salt_suffix(root_hash)


def salt_suffix(root_hash: bytes) -> bytes:
    """Return how the keys of all entries of a salt end."""
    return root_hash[:SALT_BYTES]


def entries_of(bundle: Bundle) -> list[Entry]:
    """List what a bundle on the device needs, pages from the root on, states last."""
    path = list(_path(bundle.node))
    last = path.pop()
    start = last.start
    pages = [_page_entry(node, node.end) for node in path]
    pages.append(_page_entry(last, bundle.position, prefix_hash=bundle.prefix_hash))
    states = Entry(EntryKind.STATES, start, bundle.position, bundle.prefix_hash, b"", bundle.slot)
    return [*pages, states]


def wanted_entry(key: PrefixKey, start: int, end: int, page_id: int) -> Entry:
    """Return the page entry of a prompt's positions [start, end), to be loaded into a page."""
    return Entry(EntryKind.PAGE, start, end, key.hash_at(end), key.span(start, end), page_id)


def wanted_states(key: PrefixKey, position: int, slot: int) -> Entry:
    """Return the states entry of a prompt's first `position` tokens, to be loaded into a slot."""
    start = (position - 1) // key.page_size * key.page_size
    return Entry(EntryKind.STATES, start, position, key.hash_at(position), b"", slot)


def live_entry(key: PrefixKey, position: int, *, decode_from: int, slot: int) -> Entry:
    """Return the states entry of a live bundle after the first `position` tokens of `key`."""
    return Entry(EntryKind.LIVE, decode_from, position, key.hash_at(position), b"", slot)


def root_of(node: Node) -> Node:
    """Return the root of a node's salt."""
    while node.parent is not None:
        node = node.parent
    return node


def _path(node: Node) -> Iterator[Node]:
    nodes = []
    at: Node | None = node
    while at is not None and at.parent is not None:
        nodes.append(at)
        at = at.parent
    return reversed(nodes)


def _page_entry(node: Node, end: int, *, prefix_hash: bytes | None = None) -> Entry:
    tokens = node.tokens[: (end - node.start) * TOKEN_BYTES]
    page_id = -1 if node.page_id is None else node.page_id
    return Entry(EntryKind.PAGE, node.start, end, prefix_hash or node.hash, tokens, page_id)
