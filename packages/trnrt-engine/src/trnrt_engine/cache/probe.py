"""How deep the tiers below the device know a prompt, at a bounded cost.

A bundle is only of use with all its pages, and pages are written before the states behind them. So
the deepest page that is there is looked for first, by halves; a bundle lies at most one page
deeper. From there the positions on the grid are asked one by one toward the root, `MAX_PROBES` at
most, then the marks of the prompt that lie nearer to it. A prompt of P pages costs
log2(P) + MAX_PROBES + its marks look-ups; one of which no page is known, two and a page's grid
positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from trnrt_engine.cache.entries import EntryKind
from trnrt_engine.cache.prefix_key import PrefixKey
from trnrt_kernels.serving import GRID

MAX_PROBES = 64

Contains = Callable[[EntryKind, bytes], bool]


def deepest_states(
    key: PrefixKey,
    marks: Sequence[int],
    *,
    num_pages: int,
    above: int,
    contains: Contains,
) -> int | None:
    """Find the deepest position with states in a lower tier.

    Args:
        num_pages: whole pages of the prompt the device has.
        above: only positions deeper than this one are of use.
        contains: whether some tier has an entry of a kind and prefix hash.
    """
    if key.last_grid <= above:
        return None
    num_pages = _known_pages(key, num_pages, contains)
    for position in _candidates(key, marks, num_pages=num_pages, above=above):
        if contains(EntryKind.STATES, key.hash_at(position)):
            return position
    return None


def _known_pages(key: PrefixKey, low: int, contains: Contains) -> int:
    """Return how many whole pages are known; more may be behind one that is missing."""
    high = key.last_grid // key.page_size
    if high <= low or not contains(EntryKind.PAGE, key.page_hash(low)):
        return low
    low += 1
    if high > low and contains(EntryKind.PAGE, key.page_hash(high - 1)):
        return high
    while low < high:
        middle = (low + high + 1) // 2
        if contains(EntryKind.PAGE, key.page_hash(middle - 1)):
            low = middle
        else:
            high = middle - 1
    return low


def _candidates(
    key: PrefixKey, marks: Sequence[int], *, num_pages: int, above: int
) -> Iterator[int]:
    deepest = min(key.last_grid, (num_pages + 1) * key.page_size)
    last = max(above, deepest - MAX_PROBES * GRID)
    yield from range(deepest, last, -GRID)
    for mark in sorted({mark // GRID * GRID for mark in marks}, reverse=True):
        if above < mark <= last:
            yield mark
