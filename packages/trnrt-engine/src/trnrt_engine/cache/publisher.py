"""How a prompt gets into the tree: what shall be kept, and when it may be seen.

Only prompt positions enter, whole pages as soon as the step that filled them succeeded, the last
part of a page when the prompt is complete or its sequence ends. Its owner goes on writing behind
that part; others copy the page before they use it.
"""

from __future__ import annotations

from collections.abc import Sequence

from trnrt_engine.cache.bundles import Bundle, Kind
from trnrt_engine.cache.pins import SessionPins
from trnrt_engine.cache.prefix_cache import PrefixCache
from trnrt_engine.cache.prefix_key import PrefixKey
from trnrt_engine.cache.radix import Node
from trnrt_engine.cache.report import MatchReport
from trnrt_engine.cache.sequence import Publication, SequenceCache
from trnrt_engine.plan import Export
from trnrt_kernels.serving import GRID, MAX_EXPORTS


def wanted_bundles(key: PrefixKey, marks: Sequence[int], report: MatchReport) -> dict[int, Kind]:
    """Return the positions of a prompt that shall get a bundle, behind its hit.

    The last one an identical prompt could use, the marks, and where the prompt leaves a path that
    is known; all rounded down to the grid.
    """
    wanted: dict[int, Kind] = {key.last_grid: Kind.TAIL}
    for index, mark in enumerate(marks):
        kind = Kind.SYSTEM_END if index == 0 and len(marks) > 1 else Kind.MARK
        position = mark // GRID * GRID
        wanted[position] = wanted.get(position, Kind(0)) | kind
    if report.kv_depth < key.last_grid:
        wanted[report.kv_depth] = wanted.get(report.kv_depth, Kind(0)) | Kind.JUNCTION
    return {at: kinds for at, kinds in wanted.items() if at > report.state_depth}


class Publisher:
    """Plan exports, and turn what landed into pages and bundles of the tree."""

    def __init__(self, prefix: PrefixCache, pins: SessionPins) -> None:
        self._prefix = prefix
        self._pins = pins

    def plan_exports(self, cache: SequenceCache, start: int, end: int) -> tuple[Export, ...]:
        """Choose the bundles of a chunk, the most valuable first, and take slots for them."""
        publication = cache.publication
        if publication is None or not _can_publish(publication) or start % GRID:
            return ()
        wanted = {at: kinds for at, kinds in publication.wanted.items() if start < at <= end}
        if end % GRID == 0:
            wanted[end] = wanted.get(end, Kind(0)) | Kind.CHUNK_END
        by_value = sorted(wanted.items(), key=lambda item: (item[1], item[0]), reverse=True)
        for position, kinds in by_value[:MAX_EXPORTS]:
            slot = self._prefix.take_slot(kinds)
            if slot is not None:
                publication.exports[position] = (slot, kinds)
        planned = sorted(at for at in wanted if at in publication.exports)
        self._prefix.counters.skipped_bundles += len(wanted) - len(planned)
        return tuple(Export(at - start, publication.exports[at][0]) for at in planned)

    def publish(self, cache: SequenceCache, num_tokens: int) -> list[Bundle]:
        """Take in the chunk that ends at `num_tokens`."""
        publication = cache.publication
        if publication is None or not _can_publish(publication):
            return []
        num_before = len(publication.added)
        publication.num_tokens = num_tokens
        size = publication.key.page_size
        while publication.is_open and (publication.num_pages + 1) * size <= num_tokens:
            self._add_page(cache, publication, (publication.num_pages + 1) * size)
        if num_tokens == publication.key.num_tokens:
            self._add_tail(cache, publication)
            publication.is_open = False
            self._pin(cache, publication.deepest)
        added = publication.added[num_before:]
        if added and publication.deepest is not None:
            self._prefix.grade(publication.deepest.node)
        return added

    def close(self, cache: SequenceCache) -> None:
        """Publish what a sequence computed of its last page and give back unused slots."""
        publication = cache.publication
        if publication is None:
            return
        if _can_publish(publication):
            self._add_tail(cache, publication)
        publication.is_open = False
        for slot, _ in publication.exports.values():
            self._prefix.free_slot(slot)
        publication.exports.clear()

    def discard(self, cache: SequenceCache) -> None:
        """Take back all a sequence published, and the bundle it started from."""
        publication = cache.publication
        if cache.hit is not None:
            self._prefix.drop(cache.hit)
        if publication is None:
            return
        publication.is_open = False
        for bundle in (*publication.added, publication.deepest):
            if bundle is not None:
                self._prefix.drop(bundle)
        if publication.first_added is not None and publication.first_added.is_attached:
            self._prefix.detach(publication.first_added)

    def _add_tail(self, cache: SequenceCache, publication: Publication) -> None:
        """Publish the part of the last page that ends with the deepest bundle in it."""
        start = publication.num_pages * publication.key.page_size
        ends = [at for at in publication.exports if start < at <= publication.num_tokens]
        if publication.is_open and ends:
            self._add_page(cache, publication, max(ends))

    def _add_page(self, cache: SequenceCache, publication: Publication, end: int) -> None:
        """Publish the page of positions [publication.node.end, end) and the bundles in it.

        Where the page is known and nobody holds it, the sequence's own takes its place, so that
        none is held twice. One that others hold stays; the sequence keeps its own beside it until
        it ends, and goes on below the known one.
        """
        key, parent, tree = publication.key, publication.node, self._prefix.tree
        is_whole = end - parent.end == key.page_size
        page_id = cache.page_ids[publication.num_pages]
        node = tree.covering(parent, key, end)
        if node is None:
            if parent.children and key.hash_at(end) in parent.children:
                publication.is_open = False  # other tokens of the same hash lie there
                return
            node = self._prefix.add_page(parent, key, end, page_id)
            cache.own_pages.remove(page_id)
            publication.first_added = publication.first_added or node
        elif node.end == end and not node.locks:
            self._prefix.swap_page(node, page_id)
            cache.own_pages.remove(page_id)
        if node.end == end:
            self._prefix.extend_lock(node)
            publication.node = node
        publication.num_pages += is_whole
        for position in sorted(at for at in publication.exports if parent.end < at <= end):
            self._add_bundle(cache, publication, node, position)

    def _add_bundle(
        self, cache: SequenceCache, publication: Publication, node: Node, position: int
    ) -> None:
        slot, kinds = publication.exports.pop(position)
        prefix_hash = publication.key.hash_at(position)
        bundle = self._prefix.add_bundle(node, position, prefix_hash, slot, kinds)
        if bundle is None:
            return
        ttl_s, is_new = cache.control.ttl_s, bundle.slot == slot
        if ttl_s is not None:
            self._prefix.limit_life(bundle, ttl_s, is_new=is_new)
        elif not is_new:
            self._prefix.outlive(bundle)
        if is_new:
            publication.added.append(bundle)
        if publication.deepest is None or publication.deepest.position < position:
            publication.deepest = bundle

    def _pin(self, cache: SequenceCache, bundle: Bundle | None) -> None:
        if cache.control.pin and bundle is not None:
            self._pins.pin(cache.control.session_id, bundle)


def _can_publish(publication: Publication) -> bool:
    return publication.is_open and publication.node.is_attached
