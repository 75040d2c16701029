"""What a sequence asks of the caches and what it owns of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trnrt_engine.api import CacheControl
from trnrt_engine.cache.bundles import Bundle, Kind
from trnrt_engine.cache.prefix_key import PrefixKey
from trnrt_engine.cache.radix import Node
from trnrt_engine.cache.report import NOTHING, MatchReport, Reason
from trnrt_engine.plan import Restore

if TYPE_CHECKING:
    from trnrt_engine.cache.live import LiveBundle
    from trnrt_engine.cache.loadback import Load


@dataclass(slots=True, eq=False)
class Admission:
    """What a sequence asks for; asked again, with what is known of it, until there is room.

    Fields:
        max_tokens: positions it is promised room for: its prompt and a little more.
        marks: prompt positions worth a bundle, ascending; of several the first ends the system
            text.
        key: of the prompt; made at the first attempt.
        refused_at: state of the caches in which there was no room.
        load: what it waits for, or what it was waiting for and holds until it is admitted.
        num_loads: how many have begun. load_reason: why the last one came to nothing.
        is_probed: the tiers below need not be asked again.
        live: of a preempted sequence, what it goes on from; None: it computes again.
    """

    max_tokens: int
    token_ids: Sequence[int] = ()
    salt: str = ""
    marks: Sequence[int] = ()
    control: CacheControl = field(default_factory=CacheControl)
    key: PrefixKey | None = None
    refused_at: int = -1
    load: Load | None = None
    num_loads: int = 0
    load_reason: Reason | None = None
    is_probed: bool = False
    live: LiveBundle | None = None


@dataclass(slots=True)
class Publication:
    """How far a sequence has put its prompt into the tree.

    Fields:
        key: of the prompt.
        node: the deepest page of the prompt in the tree, or the root; locked.
        num_pages: whole pages of the prompt in the tree.
        num_tokens: prompt tokens whose step succeeded.
        wanted: positions that shall get a bundle.
        exports: slots by position: exports under way, and bundles whose page is not yet in the
            tree.
        first_added: the topmost page that is this sequence's work.
        added: the bundles that are.
        deepest: the bundle of the prompt that lies deepest, as far as known.
        is_open: more is to come.
    """

    key: PrefixKey
    node: Node
    num_pages: int
    num_tokens: int
    wanted: dict[int, Kind]
    exports: dict[int, tuple[int, Kind]] = field(default_factory=dict)
    first_added: Node | None = None
    added: list[Bundle] = field(default_factory=list)
    deepest: Bundle | None = None
    is_open: bool = True


@dataclass(slots=True, eq=False)
class SequenceCache:
    """The part of the caches one sequence owns or holds.

    Fields:
        state_slot: id of its state slot.
        page_ids: its block table; page i holds positions [i * page_size, (i + 1) * page_size).
        own_pages: those that are nobody else's; the others belong to the tree.
        num_reserved_pages: pages still promised to it.
        num_cached_tokens: positions it need not compute; beyond the prompt only if it `is_resumed`.
        is_resumed: it goes on from a live bundle.
        restore: what its first step copies before it computes; None once that has happened.
        report: what the prefix cache knew of its prompt.
        shared: deepest page it reads from the tree; locked, unless its publication holds it.
        hit: the bundle it starts from. holds_hit: it is locked, until it is restored.
        source: the page a part is copied from; locked until it is.
    """

    state_slot: int
    page_ids: list[int] = field(default_factory=list)
    own_pages: set[int] = field(default_factory=set)
    num_reserved_pages: int = 0
    control: CacheControl = field(default_factory=CacheControl)
    num_cached_tokens: int = 0
    is_resumed: bool = False
    restore: Restore | None = None
    report: MatchReport = NOTHING
    shared: Node | None = None
    hit: Bundle | None = None
    holds_hit: bool = False
    source: Node | None = None
    publication: Publication | None = None
