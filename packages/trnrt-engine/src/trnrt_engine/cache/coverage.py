"""Which bundles to give up first.

A path keeps its bundles dense at the tail and geometrically thinner toward the root: one for each
doubling of the distance from the tail, beside forks and the end of the system text. What is beyond
that is surplus and goes first, least recently used first; then the others, in the same order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from trnrt_engine.cache.bundles import LASTING, Bundle
from trnrt_kernels.serving import GRID


def surplus_of(path: Sequence[Bundle]) -> list[bool]:
    """Say of each bundle of a path, deepest first, whether the path is covered without it."""
    tail = path[0].position if path else 0
    seen: set[int] = set()
    verdict = []
    for bundle in path:
        octave = ((tail - bundle.position) // GRID).bit_length()
        is_lasting = bool(bundle.kinds & LASTING) or _is_fork(bundle)
        verdict.append(octave in seen and not is_lasting)
        seen.add(octave)
    return verdict


def _is_fork(bundle: Bundle) -> bool:
    node = bundle.node
    return node.end == bundle.position and node.num_children > 1


class EvictionOrder:
    """All bundles, in the order they are given up."""

    def __init__(self) -> None:
        self._surplus: OrderedDict[Bundle, None] = OrderedDict()
        self._kept: OrderedDict[Bundle, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._surplus) + len(self._kept)

    def __iter__(self) -> Iterator[Bundle]:
        yield from self._surplus
        yield from self._kept

    def add(self, bundle: Bundle) -> None:
        """Take in a bundle, the most recently used one."""
        self._kept[bundle] = None

    def remove(self, bundle: Bundle) -> None:
        """Forget a bundle."""
        self._surplus.pop(bundle, None)
        self._kept.pop(bundle, None)

    def touch(self, bundle: Bundle) -> None:
        """Note that a bundle was used; what was of use is no surplus."""
        self._surplus.pop(bundle, None)
        self._kept[bundle] = None
        self._kept.move_to_end(bundle)

    def grade(self, path: Sequence[Bundle]) -> None:
        """Sort out the surplus of a path, given deepest first."""
        for bundle, is_surplus in zip(path, surplus_of(path), strict=True):
            if is_surplus and bundle in self._kept:
                del self._kept[bundle]
                self._surplus[bundle] = None

    def slot_victim(self, *, surplus_only: bool) -> Bundle | None:
        """Return the bundle whose slot goes first; None when none may."""
        for bundle in self._surplus if surplus_only else self:
            if not bundle.locks:
                return bundle
        return None

    def page_victim(self) -> Bundle | None:
        """Return the first bundle at the end of a path that nobody holds: giving it up frees pages.

        The kept ones come first: surplus lies inside of paths and frees none.
        """
        for queue in (self._kept, self._surplus):
            for bundle in queue:
                if not (bundle.locks or bundle.node.locks or bundle.node.num_children):
                    return bundle
        return None
