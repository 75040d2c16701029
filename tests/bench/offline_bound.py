"""A bound no cache policy can exceed on a trace, future known: a Lagrangian relaxation.

Blocks of 64 tokens of a prompt can be hit only if they have stayed in the cache since the last
request that had them, and then only beside a bundle's states, on the same path at their end or
deeper, that has stayed as long: whoever could have saved them later would have had the blocks, too.
So request j, to hit its blocks last had by i, holds their bytes, and one set of states, from i's
first token to j's start. States held so for two requests at one moment are never the same: if they
were on both paths, the earlier request would have had the later one's blocks more recently. Hence
at each moment

    sum of the blocks' bytes + one state set for each request that waits  <=  budget

must hold. Left out: what running sequences hold, that a hit needs all blocks before it, that pages
are whole, that bytes of pages cannot be lent to states. All that only makes less possible.

Pricing the budget's bytes at `price[t] >= 0` tokens a byte and second turns the constraint into
a cost; then each request decides alone. Whatever the prices, the value is a bound; the prices are
moved toward where more is wanted than there is, and the least value counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trnrt_engine.simulate.endless import prefixes_of
from trnrt_engine.simulate.replay import RequestOutcome
from trnrt_engine.simulate.sizes import EngineSizes
from trnrt_engine.simulate.trace import BLOCK_TOKENS

NUM_BUCKETS = 600
NUM_ROUNDS = 400


class Wishes:
    """What every request could hit, in groups of blocks that the same earlier request had last.

    Attributes:
        request, begins_s, ends_s, num_blocks: one entry a group; of one request the groups lie
            from the root down, so `begins_s` falls. request ascends.
    """

    def __init__(self, outcomes: Sequence[RequestOutcome]) -> None:
        ran = [o for o in outcomes if o.match is not None and not o.refused]
        # What a step computed can be hit by what starts at that very moment.
        events = [(o.started_s, True, place) for place, o in enumerate(ran)]
        events += [(o.first_token_s, False, place) for place, o in enumerate(ran)]
        last: dict[int, int] = {}
        rows: list[tuple[int, float, float, int]] = []
        self.num_started = 0
        for _, is_start, place in sorted(events):
            outcome = ran[place]
            prefixes = list(prefixes_of(outcome.request))
            if not is_start:
                last.update((prefix, place) for prefix in prefixes if prefix not in last)
                continue
            groups: dict[int, int] = {}
            most = (outcome.request.num_prompt_tokens - 1) // BLOCK_TOKENS
            for prefix in prefixes[:most]:
                if prefix not in last:
                    break
                groups[last[prefix]] = groups.get(last[prefix], 0) + 1
                last[prefix] = place
            rows += [
                (self.num_started, ran[of].first_token_s, outcome.started_s, count)
                for of, count in groups.items()
            ]
            self.num_started += 1
        columns = list(zip(*rows, strict=True))
        self.request = np.array(columns[0])
        self.begins_s, self.ends_s = np.array(columns[1]), np.array(columns[2])
        self.num_blocks = np.array(columns[3], dtype=float)

    @property
    def total_tokens(self) -> float:
        """What all of them together would hit."""
        return float(self.num_blocks.sum()) * BLOCK_TOKENS


def bound_tokens(outcomes: Sequence[RequestOutcome], sizes: EngineSizes) -> float:
    """Return a number of hit tokens that no policy exceeds within the device's bytes."""
    return _Prices(Wishes(outcomes), sizes).lowest()


class _Prices:
    """Prices by time, and what is wanted at them."""

    def __init__(self, wishes: Wishes, sizes: EngineSizes) -> None:
        self.wishes = wishes
        self._budget = float(sizes.device_bytes)
        self._block_bytes = sizes.page_bytes * BLOCK_TOKENS / sizes.page_size
        self._state_bytes = float(sizes.state_bytes)
        self._edges_s = np.linspace(0.0, float(wishes.ends_s.max()), NUM_BUCKETS + 1)
        self._starts = np.flatnonzero(np.r_[True, np.diff(wishes.request) > 0])
        self._group = np.repeat(
            np.arange(len(self._starts)), np.diff(np.r_[self._starts, len(wishes.request)])
        )

    def lowest(self) -> float:
        """Return the lowest bound found."""
        lives = np.maximum(self.wishes.ends_s - self.wishes.begins_s, 0.0)
        scale = BLOCK_TOKENS / (self._block_bytes * max(float(np.median(lives)), 1.0))
        best, best_price = self.wishes.total_tokens, np.zeros(NUM_BUCKETS)
        for power in range(-16, 9):
            price = np.full(NUM_BUCKETS, scale * 2.0**power)
            value = self._value(price)[0]
            if value < best:
                best, best_price = value, price
        price = np.maximum(best_price, scale * 2.0**-20)
        for step in range(NUM_ROUNDS):
            value, used = self._value(price)
            best = min(best, value)
            price = price * np.exp(0.5 / (1 + step / 20) * np.clip(used - 1, -1, 1))
        return best

    def _value(self, price: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the bound at these prices and the share of the budget wanted in each bucket."""
        wishes, widths = self.wishes, np.diff(self._edges_s)
        upto = np.r_[0.0, np.cumsum(price * widths)]
        ends = np.maximum(wishes.ends_s, wishes.begins_s)
        cost = np.interp(ends, self._edges_s, upto) - np.interp(
            wishes.begins_s, self._edges_s, upto
        )
        gain = wishes.num_blocks * (BLOCK_TOKENS - self._block_bytes * cost)
        is_bought = gain > 0
        running = np.cumsum(np.where(is_bought, gain, 0.0))
        before = np.r_[0.0, running][self._starts][self._group]
        profit = running - before - self._state_bytes * cost
        most = np.maximum(np.maximum.reduceat(profit, self._starts), 0.0)
        # Of each request: the group it goes down to, the first that is best.
        is_best = (profit >= most[self._group]) & (profit > 0)
        deepest = np.full(len(self._starts), -1)
        places = np.flatnonzero(is_best)
        deepest[self._group[places[::-1]]] = places[::-1]
        taken = is_bought & (np.arange(len(gain)) <= deepest[self._group])
        num_bytes = np.where(taken, wishes.num_blocks * self._block_bytes, 0.0)
        states = deepest[deepest >= 0]
        used = self._spread(wishes.begins_s, ends, num_bytes)
        used += self._spread(
            wishes.begins_s[states], ends[states], np.full(len(states), self._state_bytes)
        )
        value = self._budget * float((price * widths).sum()) + float(most.sum())
        return value, used / (self._budget * widths)

    def _spread(
        self,
        begins_s: NDArray[np.float64],
        ends_s: NDArray[np.float64],
        num_bytes: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Return the byte-seconds that fall into each bucket."""
        # Integral of a step function that rises by num_bytes at each begin and falls at each end.
        times = np.r_[begins_s, ends_s]
        order = np.argsort(times, kind="stable")
        level = np.cumsum(np.r_[num_bytes, -num_bytes][order])
        at = times[order]
        area = np.r_[0.0, np.cumsum(level[:-1] * np.diff(at))]
        return np.diff(np.interp(self._edges_s, at, area)) if len(at) else np.zeros(NUM_BUCKETS)
