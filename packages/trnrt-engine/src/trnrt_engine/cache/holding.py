"""What sequences hold of the tree: locked from admission until it is read, copied or given back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from trnrt_engine.api import CacheMode
from trnrt_engine.cache.bundles import Bundle
from trnrt_engine.cache.live import LiveBundle
from trnrt_engine.cache.prefix_cache import Lookup, PrefixCache
from trnrt_engine.cache.publisher import wanted_bundles
from trnrt_engine.cache.radix import Node
from trnrt_engine.cache.report import MatchReport
from trnrt_engine.cache.sequence import Admission, Publication, SequenceCache
from trnrt_engine.errors import IntegrityError


class Holding:
    """Locks on pages and bundles, on behalf of sequences."""

    def __init__(self, prefix: PrefixCache) -> None:
        self._prefix = prefix

    def hold(
        self, cache: SequenceCache, ask: Admission, found: Lookup, *, report: MatchReport
    ) -> None:
        """Lock what a sequence reads and where it publishes, and give it its first pages."""
        bundle, match, key = found.bundle, found.match, ask.key
        if key is None:
            raise IntegrityError("a prompt was looked up without a key")
        position = bundle.position if bundle is not None else 0
        path = match.path[: position // key.page_size]
        cache.num_cached_tokens = position
        cache.report = report
        cache.page_ids = [page_of(node) for node in path]
        top = path[-1] if path else None
        if ask.control.mode is CacheMode.WRITE:
            top = top or self._prefix.tree.root(key)
            wanted = wanted_bundles(key, ask.marks, report)
            cache.publication = Publication(key, top, len(path), position, wanted, deepest=bundle)
        else:
            cache.shared = top
        if top is not None:
            self._prefix.lock(top)
        if bundle is not None:
            if position % key.page_size:
                cache.source = bundle.node
                self._prefix.lock(bundle.node)
            cache.hit, cache.holds_hit = bundle, True
            self._prefix.lock_bundle(bundle)

    def hold_again(self, cache: SequenceCache, live: LiveBundle, kept: list[Node]) -> None:
        """Lock the pages of a live bundle that are still in the tree, and publish where it did."""
        cache.page_ids = [page_of(node) for node in kept]
        cache.num_cached_tokens = live.position
        cache.is_resumed = True
        before, top = live.publication, kept[-1] if kept else None
        if before is not None:
            node = top or self._prefix.tree.root(before.key)
            cache.publication = Publication(
                before.key,
                node,
                len(kept),
                live.position,
                {at: kinds for at, kinds in before.wanted.items() if at > live.position},
                first_added=before.first_added,
                added=before.added,
                deepest=before.deepest,
                is_open=live.position < before.key.num_tokens,
            )
            self._prefix.lock(node)
        elif top is not None:
            cache.shared = top
            self._prefix.lock(top)

    def shared_pages(self, cache: SequenceCache) -> list[Node]:
        """Return the nodes of the leading whole pages a sequence shares with the tree."""
        publication = cache.publication
        at: Node | None = publication.node if publication is not None else cache.shared
        path = []
        while at is not None and at.parent is not None:
            path.append(at)
            at = at.parent
        path.reverse()
        shared = []
        for node, page_id in zip(path, cache.page_ids, strict=False):
            if node.page_id != page_id or node.end - node.start != self._prefix.tree.page_size:
                break
            shared.append(node)
        return shared

    def finish_restore(self, cache: SequenceCache) -> bool:
        """Let go of what was copied before the first step; True if a page was."""
        cache.restore = None
        if cache.hit is not None and cache.holds_hit:
            self._prefix.unlock_bundle(cache.hit)
            cache.holds_hit = False
        if cache.source is None:
            return False
        self._prefix.unlock(cache.source)
        cache.source = None
        return True

    def let_go(self, cache: SequenceCache) -> None:
        """Unlock all a sequence holds."""
        self.finish_restore(cache)
        if cache.shared is not None:
            self._prefix.unlock(cache.shared)
            cache.shared = None
        if cache.publication is not None:
            self._prefix.unlock(cache.publication.node)
            cache.publication = None


def page_of(node: Node) -> int:
    """Return the page of a node that is used."""
    if node.page_id is None:
        raise IntegrityError(f"a node at {node.start} that is hit has no page")
    return node.page_id


def locks_of(caches: Iterable[SequenceCache]) -> tuple[Counter[Node], Counter[Bundle], list[int]]:
    """Return nodes and bundles that sequences hold, and slots of their exports under way."""
    nodes: Counter[Node] = Counter()
    bundles: Counter[Bundle] = Counter()
    slots = []
    for cache in caches:
        publication = cache.publication
        held = (cache.shared, cache.source, publication.node if publication is not None else None)
        nodes.update(node for node in held if node is not None)
        if cache.hit is not None and cache.holds_hit:
            bundles[cache.hit] += 1
        if publication is not None:
            slots += [slot for slot, _ in publication.exports.values()]
    return nodes, bundles, slots
