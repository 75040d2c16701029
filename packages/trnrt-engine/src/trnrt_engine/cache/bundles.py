"""Bundles: everything a position needs beside its pages, and what makes one worth keeping."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trnrt_engine.cache.radix import Node


class Part(IntFlag):
    """What a bundle consists of; a draft layer's cache would be one more.

    OPEN_POOL: index keys behind the last whole pool; on the grid there are none. SAMPLING: what
    the sampler remembers of one request.
    """

    PAGES = 1
    POOL_KEYS = 2
    KDA_STATE = 4
    CONV_TAIL = 8
    OPEN_POOL = 16
    SAMPLING = 32


NO_PART = Part(0)
PAGE_PARTS = Part.PAGES | Part.POOL_KEYS
GRID_PARTS = PAGE_PARTS | Part.KDA_STATE | Part.CONV_TAIL
TURN_PARTS = GRID_PARTS | Part.OPEN_POOL
LIVE_PARTS = GRID_PARTS | Part.OPEN_POOL | Part.SAMPLING


class Kind(IntFlag):
    """Why a position got a bundle; a greater value is worth more.

    CHUNK_END: it came for free. TAIL: the last one an identical prompt can use. MARK: a border
    of messages. JUNCTION: paths part there. SYSTEM_END: the end of system text and tools.
    TURN_END: the last token of a session's last turn, anywhere; the answer is in decode form.
    """

    CHUNK_END = 1
    TAIL = 2
    MARK = 4
    JUNCTION = 8
    SYSTEM_END = 16
    TURN_END = 32


LASTING = Kind.JUNCTION | Kind.SYSTEM_END


@dataclass(slots=True, eq=False)
class Bundle:
    """The states after exactly `position` tokens, in a state slot.

    Fields:
        prefix_hash: of those tokens. cache_id: of the engine whose numbers they are.
        node: whose page holds the last of those tokens.
        locks: restores under way and pins; while there are any, the slot stays.
        last_use: logical time.
        ttl_s, expires_at_s: dropped when not used for so long; None keeps it.
        is_live: it can be hit; one that is not goes when its last lock does.
    """

    position: int
    prefix_hash: bytes
    cache_id: bytes
    slot: int
    node: Node
    kinds: Kind
    parts: Part = GRID_PARTS
    locks: int = 0
    last_use: int = 0
    ttl_s: float | None = None
    expires_at_s: float | None = None
    is_live: bool = True

    def fits(self, position: int, prefix_hash: bytes, cache_id: bytes) -> bool:
        """Say whether it is whole and is what its place in the tree promises."""
        return (
            self.parts == (TURN_PARTS if self.kinds & Kind.TURN_END else GRID_PARTS)
            and self.position == position
            and self.prefix_hash == prefix_hash
            and self.cache_id == cache_id
        )
