"""The prefix cache of the device: a tree, its bundles, who holds them and what goes first.

Nothing that is locked is evicted. A lock on a node holds its whole path, so that the pages nobody
holds (`num_evictable`) can all be had, leaf by leaf; whoever locks a bundle has locked its path.
Pages behind the last bundle of their path are no hit for anybody: they are given up first.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from trnrt_engine.cache.bundles import TURN_PARTS, Bundle, Kind
from trnrt_engine.cache.coverage import EvictionOrder
from trnrt_engine.cache.pages import PagePool
from trnrt_engine.cache.prefix_key import PrefixKey, root_hash
from trnrt_engine.cache.radix import Match, Node, RadixTree
from trnrt_engine.cache.report import CacheCounters, Reason
from trnrt_engine.cache.states import StateSlots
from trnrt_engine.errors import IntegrityError
from trnrt_kernels.serving import GRID

logger = logging.getLogger(__name__)

MAX_REMEMBERED = 4096  # bundles given up of which it is known that they were there


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a prompt can use.

    Fields:
        bundle: the deepest that is whole and leaves a token to compute.
    """

    match: Match
    bundle: Bundle | None
    reason: Reason

    @property
    def position(self) -> int:
        """Tokens that need not be computed."""
        return self.bundle.position if self.bundle is not None else 0


class PrefixCache:
    """Pages and bundles that outlive the sequence that made them.

    Args:
        pool: where evicted pages go.
        slots: for bundles.
        cache_id: of this engine's numbers; bundles of another are refused.
        clock: seconds, monotonic; for times to live.

    Attributes:
        num_evictable: pages in the tree nobody holds.
    """

    def __init__(
        self,
        pool: PagePool,
        slots: StateSlots,
        *,
        page_size: int,
        cache_id: bytes,
        clock: Callable[[], float],
    ) -> None:
        self.tree = RadixTree(page_size)
        self.num_evictable = 0
        self.counters = CacheCounters()
        self._pool = pool
        self._slots = slots
        self._cache_id = cache_id
        self._clock = clock
        self._order = EvictionOrder()
        self._orphans: dict[Node, None] = {}
        self._detached: dict[Node, None] = {}
        self._lingering: dict[Bundle, None] = {}
        self._gone: OrderedDict[bytes, Reason] = OrderedDict()
        self._expiries: list[tuple[float, int, Bundle]] = []
        self._ticks = itertools.count(1)

    @property
    def num_bundles(self) -> int:
        """Bundles that can be hit."""
        return len(self._order)

    @property
    def num_free_slots(self) -> int:
        """Bundle slots that hold nothing."""
        return self._slots.num_free

    @property
    def num_slots(self) -> int:
        """Bundle slots in all."""
        return self._slots.num_slots

    def next_free_slots(self, count: int) -> list[int]:
        """List the free slots that are given out next, at most `count`."""
        return self._slots.next_free(count)

    def lookup(self, key: PrefixKey) -> Lookup:
        """Find the deepest bundle a prompt can use; takes nothing, drops what is not right."""
        self.expire()
        match = self.tree.match(key)
        is_mismatched = False
        for position, bundle in self.tree.bundles(key, match):
            if not bundle.is_live:
                continue
            page_start = (position - 1) // key.page_size * key.page_size
            if bundle.fits(
                position, key.hash_at(position), self._cache_id
            ) and bundle.node.tokens.startswith(key.span(page_start, position)):
                return Lookup(match, bundle, Reason.HIT)
            logger.warning("bundle refused: not what its place promises tokens=%d", position)
            self.drop(bundle)
            is_mismatched = True
        if is_mismatched:
            return Lookup(match, None, Reason.MISMATCH)
        return Lookup(match, None, self._why_missed(key, match))

    def use(self, bundle: Bundle) -> None:
        """Note a hit: of all on its path, only the bundle that was used becomes younger."""
        self._order.touch(bundle)
        bundle.last_use = next(self._ticks)
        if bundle.ttl_s is not None:
            bundle.expires_at_s = self._clock() + bundle.ttl_s

    def lock(self, node: Node) -> None:
        """Hold a node and its path."""
        at: Node | None = node
        while at is not None:
            self.extend_lock(at)
            at = at.parent

    def can_hold(self, node: Node) -> bool:
        """Whether holding a node and its path leaves what sequences are promised."""
        num_unlocked, at = 0, node
        while at.parent is not None and not at.locks:
            num_unlocked, at = num_unlocked + 1, at.parent
        return num_unlocked <= self._pool.num_available(self.num_evictable)

    def extend_lock(self, node: Node) -> None:
        """Let a holder of the parent hold this node instead."""
        if node.locks == 0 and node.parent is not None:
            self.num_evictable -= 1
            self._orphans.pop(node, None)
        node.locks += 1

    def unlock(self, node: Node) -> None:
        """Let go of a node and its path; what is detached and held by nobody is freed."""
        at: Node | None = node
        while at is not None:
            parent = at.parent
            at.locks -= 1
            if at.locks < 0:
                raise IntegrityError(f"a node at {at.start} has {at.locks} locks")
            if at.locks == 0:
                self._let_go(at)
            at = parent

    def lock_bundle(self, bundle: Bundle) -> None:
        """Hold a bundle's slot; its path must be locked."""
        bundle.locks += 1

    def unlock_bundle(self, bundle: Bundle) -> None:
        """Let go of a bundle; one that is no longer live gives its slot back."""
        bundle.locks -= 1
        if bundle.locks < 0:
            raise IntegrityError(f"a bundle at {bundle.position} has {bundle.locks} locks")
        if not bundle.locks and not bundle.is_live:
            del self._lingering[bundle]
            self._forget(bundle)

    def add_page(self, parent: Node, key: PrefixKey, end: int, page_id: int) -> Node:
        """Take over the page that holds a prompt's positions [parent.end, end), unlocked."""
        node = self.tree.insert(parent, key, end, page_id)
        self.num_evictable += 1
        for left in self.tree.rehome(node):
            self._note_orphan(left)
        self._note_orphan(node)
        return node

    def swap_page(self, node: Node, page_id: int) -> None:
        """Let a page nobody holds be another one with the same tokens; the old one is freed."""
        if node.locks:
            raise IntegrityError(f"a node at {node.start} that is held cannot change its page")
        self._free_page(node)
        node.page_id = page_id

    def add_bundle(
        self, node: Node, position: int, prefix_hash: bytes, slot: int, kinds: Kind
    ) -> Bundle | None:
        """Take over a slot that holds the states after `position` tokens.

        Returns:
            The bundle of that place: this one, or the one there is already; then the slot is free.
            None: the place is taken by one that cannot be hit.
        """
        parent = node.parent
        present = parent.bundles.get(prefix_hash) if parent and parent.bundles else None
        if present is not None:
            self._slots.free(slot)
            present.kinds |= kinds
            return present if present.is_live else None
        bundle = Bundle(position, prefix_hash, self._cache_id, slot, node, kinds)
        bundle.last_use = next(self._ticks)
        self.tree.add_bundle(bundle)
        self._order.add(bundle)
        self._orphans.pop(node, None)
        self._gone.pop(prefix_hash, None)
        return bundle

    def add_turn_end(self, node: Node, position: int, prefix_hash: bytes, slot: int) -> Bundle:
        """Take over a slot that is to hold where a turn ended; only its session finds it."""
        bundle = Bundle(
            position, prefix_hash, self._cache_id, slot, node, Kind.TURN_END, parts=TURN_PARTS
        )
        bundle.last_use = next(self._ticks)
        self.tree.home(bundle)
        self._order.add(bundle)
        self._orphans.pop(node, None)
        return bundle

    def check(self, bundle: Bundle, position: int, prefix_hash: bytes) -> bool:
        """Say whether a bundle is whole and what its place promises; one that is not is dropped."""
        if bundle.fits(position, prefix_hash, self._cache_id):
            return True
        logger.warning("bundle refused: not what its place promises tokens=%d", position)
        self.drop(bundle)
        return False

    def limit_life(self, bundle: Bundle, ttl_s: float, *, is_new: bool) -> None:
        """Give a bundle its time to live; one that was given several keeps the longest."""
        if not is_new and (bundle.ttl_s is None or bundle.ttl_s > ttl_s):
            return
        bundle.ttl_s = ttl_s
        bundle.expires_at_s = self._clock() + ttl_s
        heapq.heappush(self._expiries, (bundle.expires_at_s, next(self._ticks), bundle))

    def outlive(self, bundle: Bundle) -> None:
        """Take a bundle's time to live away: somebody without one left it, too."""
        bundle.ttl_s = bundle.expires_at_s = None

    def grade(self, node: Node) -> None:
        """Thin out the path that ends at `node`: say which of its bundles are surplus."""
        path: list[Bundle] = []
        at: Node | None = node
        while at is not None:
            if at.homed:
                live = (bundle for bundle in at.homed if bundle.is_live)
                path.extend(sorted(live, key=lambda bundle: -bundle.position))
            at = at.parent
        self._order.grade(path)

    def take_slot(self, kinds: Kind) -> int | None:
        """Take a slot for a bundle; None when nothing is worth less than it.

        A chunk end takes the place of surplus only, others also that of the least recently used.
        """
        slot = self._slots.allocate()
        if slot is None:
            self.expire()
            victim = self._order.slot_victim(surplus_only=kinds == Kind.CHUNK_END)
            if victim is not None:
                self._evict(victim, Reason.EVICTED)
            slot = self._slots.allocate()
        return slot

    def free_slot(self, slot: int) -> None:
        """Give back a slot that became no bundle."""
        self._slots.free(slot)

    def evict_page(self) -> None:
        """Free at least one page.

        Raises:
            IntegrityError: every page is held; what was promised is not there.
        """
        while not self._orphans:
            victim = self._order.page_victim()
            if victim is None:
                raise IntegrityError("no page can be evicted")
            self._evict(victim, Reason.EVICTED)
        self.counters.evicted_pages += 1
        self._drop_orphan()

    def drop(self, bundle: Bundle) -> None:
        """Make a bundle unusable: it goes now, or with its last lock."""
        if bundle.is_live:
            self._evict(bundle, None)

    def detach(self, top: Node) -> None:
        """Make a page and all below it unfindable; what nobody holds is freed."""
        parent = top.parent
        nodes = list(top.walk())
        for node in nodes:
            for bundle in list(node.homed or ()):
                self.drop(bundle)
        if parent is None:
            self.tree.remove(top)
        for node in reversed(nodes):
            if node.parent is None:
                continue
            self.tree.remove(node)
            self._orphans.pop(node, None)
            if node.locks:
                self._detached[node] = None
            else:
                self.num_evictable -= 1
                self._free_page(node)
        if parent is not None:
            self._note_orphan(parent)
            self._drop_empty_root(parent)

    def flush(self, salt: str | None = None) -> None:
        """Forget one salt, or all: nothing of it is hit from now on."""
        for root in list(self.tree.roots.values()):
            if salt is None or root.hash == root_hash(salt):
                self.detach(root)

    def expire(self) -> None:
        """Drop the bundles whose time is over."""
        now_s = self._clock() if self._expiries else 0.0
        while self._expiries and self._expiries[0][0] <= now_s:
            _, _, bundle = heapq.heappop(self._expiries)
            if not bundle.is_live or bundle.expires_at_s is None:
                continue
            if bundle.expires_at_s > now_s:
                heapq.heappush(self._expiries, (bundle.expires_at_s, next(self._ticks), bundle))
            else:
                self._evict(bundle, Reason.EXPIRED)

    def pages(self) -> list[int]:
        """Return every page the tree owns, those that cannot be found any more included."""
        nodes = itertools.chain(self.tree.nodes(), self._detached)
        return [node.page_id for node in nodes if node.page_id is not None]

    def check_integrity(
        self, locks: Counter[Node], held: Counter[Bundle], slots: list[int]
    ) -> None:
        """Prove that the tree, its locks and its slots add up.

        Args:
            locks: what holders say they hold, by node; paths not counted.
            held: what they say they hold, by bundle.
            slots: those of exports under way and of bundles not yet in the tree.

        Raises:
            IntegrityError: something is lost, held twice or held by nobody.
        """
        attached = set(self.tree.nodes())
        expected: Counter[Node] = Counter()
        for node, count in locks.items():
            at: Node | None = node
            while at is not None:
                expected[at] += count
                at = at.parent
        for node in (*attached, *self._detached, *self.tree.roots.values()):
            if node.locks != expected[node]:
                raise IntegrityError(
                    f"a node at {node.start} has {node.locks} locks, holders {expected[node]}"
                )
            if node in attached and not node.is_attached:
                raise IntegrityError(f"a detached node at {node.start} can be found")
        if sum(not node.locks for node in attached) != self.num_evictable:
            raise IntegrityError(f"{self.num_evictable} pages evictable, by count more or fewer")
        orphans = {n for n in attached if _is_orphan(n)}
        if orphans != set(self._orphans):
            raise IntegrityError("the orphan pages are not those that are listed")
        self._check_bundles(attached, held, slots)

    def _check_bundles(
        self, attached: Iterable[Node], held: Counter[Bundle], slots: list[int]
    ) -> None:
        homed = [bundle for node in attached for bundle in node.homed or ()]
        live = {bundle for bundle in homed if bundle.is_live}
        if live != set(self._order):
            raise IntegrityError(f"{len(live)} bundles in the tree, {len(self._order)} in order")
        for bundle in (*live, *self._lingering):
            if bundle.locks != held[bundle]:
                raise IntegrityError(
                    f"a bundle at {bundle.position} has {bundle.locks} locks, holders "
                    f"{held[bundle]}"
                )
            if not bundle.node.start < bundle.position <= bundle.node.end:
                raise IntegrityError(f"a bundle at {bundle.position} lies behind another page")
        owned = [bundle.slot for bundle in (*live, *self._lingering)]
        self._slots.check_integrity(owned + slots)

    def _why_missed(self, key: PrefixKey, match: Match) -> Reason:
        if key.last_grid < GRID:
            return Reason.TOO_SHORT
        if self._gone:
            ends = (key.page_hash(index) for index in reversed(range(key.num_pages)))
            for prefix_hash in itertools.chain((key.hash_at(key.last_grid),), ends):
                reason = self._gone.get(prefix_hash)
                if reason is not None:
                    return reason
        return Reason.NO_BUNDLE if match.kv_depth else Reason.COLD

    def _evict(self, bundle: Bundle, reason: Reason | None) -> None:
        bundle.is_live = False
        heir = _heir(bundle)
        if heir is not None:
            self._order.inherit(heir, bundle)
        self._order.remove(bundle)
        if reason is not None:
            self.counters.evicted_bundles += reason is Reason.EVICTED
            self._gone[bundle.prefix_hash] = reason
            if len(self._gone) > MAX_REMEMBERED:
                self._gone.popitem(last=False)
        if bundle.locks:
            self._lingering[bundle] = None
        else:
            self._forget(bundle)

    def _forget(self, bundle: Bundle) -> None:
        self.tree.remove_bundle(bundle)
        self._slots.free(bundle.slot)
        self._note_orphan(bundle.node)

    def _note_orphan(self, node: Node) -> None:
        if node.is_attached and _is_orphan(node):
            self._orphans[node] = None

    def _drop_orphan(self) -> None:
        node = next(iter(self._orphans))
        del self._orphans[node]
        self.tree.remove(node)
        self.num_evictable -= 1
        self._free_page(node)
        if node.parent is not None:
            self._note_orphan(node.parent)
            self._drop_empty_root(node.parent)

    def _let_go(self, node: Node) -> None:
        if node.parent is None:
            self._drop_empty_root(node)
        elif node.is_attached:
            self.num_evictable += 1
            self._note_orphan(node)
        else:
            self._detached.pop(node, None)
            self._free_page(node)

    def _drop_empty_root(self, node: Node) -> None:
        if node.parent is None and not node.locks and not node.num_children and node.is_attached:
            self.tree.remove(node)

    def _free_page(self, node: Node) -> None:
        if node.page_id is not None:
            self._pool.free([node.page_id])
            node.page_id = None


def _is_orphan(node: Node) -> bool:
    return not (node.locks or node.num_children or node.homed) and node.parent is not None


def _heir(bundle: Bundle) -> Bundle | None:
    """Return the bundle that ends a path when the one that does, no longer live, is gone."""
    at: Node | None = bundle.node
    if at is None or at.num_children:
        return None
    while at is not None and at.num_children <= 1:
        live = [other for other in at.homed or () if other.is_live]
        if live:
            heir = max(live, key=lambda other: other.position)
            return heir if heir.position < bundle.position else None
        at = at.parent
    return None
