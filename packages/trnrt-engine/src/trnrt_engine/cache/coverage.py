"""Which bundles to give up first.

A path keeps its bundles dense at the tail and geometrically thinner toward the root: one for each
doubling of the distance from the tail, beside forks and the end of the system text. What is beyond
that is surplus and goes first. Then go the rungs of that ladder, for they serve only who turns
back: with the deepest bundle of its path there, a rung saves the few tokens between two rungs, and
the last bundle of a path saves the path. The ends of paths, forks and ends of system texts go last.
Within each of the three the least recently used goes first.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from enum import IntEnum

from trnrt_engine.cache.bundles import LASTING, Bundle
from trnrt_kernels.serving import GRID


class Worth(IntEnum):
    """How late a bundle goes."""

    SURPLUS = 0
    RUNG = 1
    END = 2


# An end goes before a rung only when it has been idle sixteen times as long, and so on: an end is
# what its session comes back to, unless the session is over.
HASTE = {Worth.SURPLUS: 64, Worth.RUNG: 16, Worth.END: 1}


def worth_of(path: Sequence[Bundle]) -> list[Worth]:
    """Judge the bundles of a path, deepest first."""
    tail = path[0].position if path else 0
    seen: set[int] = set()
    verdict = []
    for bundle in path:
        octave = ((tail - bundle.position) // GRID).bit_length()
        if bundle.position == tail or bundle.kinds & LASTING or _is_fork(bundle):
            verdict.append(Worth.END)
        else:
            verdict.append(Worth.SURPLUS if octave in seen else Worth.RUNG)
        seen.add(octave)
    return verdict


def _is_fork(bundle: Bundle) -> bool:
    node = bundle.node
    return node.end == bundle.position and node.num_children > 1


class EvictionOrder:
    """All bundles, in the order they are given up.

    Idle time is counted in uses of any bundle. That of an end counts from its own last use; rungs
    and surplus count from when their path was last published on, as they are worth something only
    while somebody is on the path.
    """

    def __init__(self) -> None:
        self._queues: dict[Worth, OrderedDict[Bundle, int]] = {
            worth: OrderedDict() for worth in Worth
        }
        self._now = 0

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Bundle]:
        return itertools.chain.from_iterable(self._queues.values())

    def add(self, bundle: Bundle) -> None:
        """Take in a bundle, the most recently used one; `grade` says what it is worth."""
        self._now += 1
        self._queues[Worth.END][bundle] = self._now

    def remove(self, bundle: Bundle) -> None:
        """Forget a bundle."""
        for queue in self._queues.values():
            queue.pop(bundle, None)

    def inherit(self, heir: Bundle, bundle: Bundle) -> None:
        """Let a bundle be the end of a path in the place of one that is about to go.

        It has been idle at least as long. Were it still a rung, its pages would outlive every end.
        """
        since = next(queue[bundle] for queue in self._queues.values() if bundle in queue)
        self.remove(heir)
        ends = self._queues[Worth.END]
        is_oldest = since <= next(iter(ends.values()), since)
        ends[heir] = since
        if is_oldest:  # as one is that goes for room
            ends.move_to_end(heir, last=False)
        else:
            self._queues[Worth.END] = OrderedDict(sorted(ends.items(), key=lambda item: item[1]))

    def touch(self, bundle: Bundle) -> None:
        """Note that a bundle was used; what was of use is the end of a path to somebody."""
        self.remove(bundle)
        self.add(bundle)

    def grade(self, path: Sequence[Bundle]) -> None:
        """Sort the bundles of a path by worth, given deepest first."""
        for bundle, worth in zip(path, worth_of(path), strict=True):
            if worth is not Worth.END or bundle not in self._queues[worth]:
                self.remove(bundle)
                self._queues[worth][bundle] = self._now

    def slot_victim(self, *, surplus_only: bool) -> Bundle | None:
        """Return the bundle whose slot goes first; None when none may."""
        victim, longest = None, -1
        for worth in (Worth.SURPLUS,) if surplus_only else Worth:
            for bundle, since in self._queues[worth].items():
                if not bundle.locks:
                    idle = (self._now - since) * HASTE[worth]
                    if idle > longest:
                        victim, longest = bundle, idle
                    break
        return victim

    def page_victim(self) -> Bundle | None:
        """Return the first bundle at the end of a path that nobody holds: giving it up frees pages.

        The ends come first: what is worth less lies inside of paths and frees none.
        """
        for queue in reversed(self._queues.values()):
            for bundle in queue:
                if not (bundle.locks or bundle.node.locks or bundle.node.num_children):
                    return bundle
        return None
