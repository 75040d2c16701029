"""Live bundles of preempted requests: all a sequence needs to go on, wherever it was stopped.

Unlike one on the grid, such a bundle lies at any position, carries the open index pools and what
the sampler remembers, and belongs to one request. It says from which position on it is in decode
form; going on from it keeps every position in the form it has.
"""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from trnrt_engine.cache.bundles import LIVE_PARTS, NO_PART, PAGE_PARTS, Part
from trnrt_engine.cache.entries import Entry, EntryKind, live_entry, wanted_entry
from trnrt_engine.cache.prefix_key import PrefixKey
from trnrt_engine.cache.radix import Node
from trnrt_engine.cache.sequence import Publication, SequenceCache

_KEY = struct.Struct("<QQ")  # serial of the bundle, index of the entry


class LiveStatus(Enum):
    """How far a bundle is on its way to host memory and back; a LOST one cannot be restored."""

    SAVING = auto()
    SAVED = auto()
    LOADING = auto()
    LOADED = auto()
    LOST = auto()


@dataclass(slots=True, eq=False)
class LiveBundle:
    """One preempted sequence after exactly `position` tokens.

    Fields:
        key: of those tokens, generated ones included.
        decode_from: positions from here on are in decode form.
        nodes: (page of the tree, its id) of the leading whole pages it shared; they may be gone.
        publication: how far its prompt had got into the tree; None if it does not publish.
        first_saved: pages before this one are not in host memory, `nodes` must still hold them.
        num_bytes: promised to it in the swap space.
        parts: those that are in host memory, while it is loaded those that are back.
        num_missing_pages: of these, still to come.
        cache: what its sequence holds while it is copied; None in between.
        todo: (index, entry) still to be copied. tickets: being copied; loads with their header.
        deadline_s: a load is late from then on.
    """

    serial: int
    key: PrefixKey
    position: int
    decode_from: int
    cache_id: bytes
    nodes: list[tuple[Node, int]]
    publication: Publication | None
    first_saved: int = 0
    num_bytes: int = 0
    parts: Part = NO_PART
    num_missing_pages: int = 0
    status: LiveStatus = LiveStatus.SAVING
    cache: SequenceCache | None = None
    todo: deque[tuple[int, Entry]] = field(default_factory=deque)
    tickets: dict[int, tuple[int, Entry, bytearray]] = field(default_factory=dict)
    deadline_s: float = 0.0

    @property
    def is_whole(self) -> bool:
        """Every part it declares is there."""
        return self.parts == LIVE_PARTS

    @property
    def num_pages(self) -> int:
        """Pages that hold its tokens, the last one in part."""
        return -(-self.position // self.key.page_size)

    def store_key(self, index: int) -> bytes:
        """Return the name of an entry in the swap space; no two bundles share one."""
        return _KEY.pack(self.serial, index)

    def begin(self, cache: SequenceCache, status: LiveStatus, *, first: int) -> None:
        """List what is copied from or to a sequence's room: its pages from `first` on, then states.

        The pages before are in the tree: they are there already.
        """
        size, key = self.key.page_size, self.key
        ends = [min((index + 1) * size, self.position) for index in range(self.num_pages)]
        self.todo = deque(
            (index, wanted_entry(key, index * size, end, cache.page_ids[index]))
            for index, end in enumerate(ends[first:], first)
        )
        slot = cache.state_slot
        states = live_entry(key, self.position, decode_from=self.decode_from, slot=slot)
        self.todo.append((self.num_pages, states))
        self.cache, self.status = cache, status
        self.num_missing_pages = self.num_pages - first
        self.parts = NO_PART if self.num_missing_pages else PAGE_PARTS

    def note(self, entry: Entry) -> None:
        """Take an entry that arrived into `parts`; pages count when all of them are there."""
        if entry.kind is EntryKind.PAGE:
            self.num_missing_pages -= 1
            if not self.num_missing_pages:
                self.parts |= PAGE_PARTS
        else:
            self.parts |= entry.kind.parts

    def kept_nodes(self) -> list[Node]:
        """Return the leading pages that are in the tree as they were; nobody wrote to them."""
        kept = []
        for node, page_id in self.nodes:
            if not node.is_attached or node.page_id != page_id:
                break
            kept.append(node)
        return kept
