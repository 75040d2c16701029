"""How long steps take, measured while they run, so that a stall can be foreseen.

A step costs what it is padded to: the rows and the context of its buckets. Each pair has an
estimate that follows slower steps at once and quicker ones slowly, and that no single outlier can
move far. A bucket that was never run is foreseen from the others of its context, as if time grew
linearly with rows; it grows less, for part of a step's cost does not depend on them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from trnrt_kernels.serving import GRID

MAX_FACTOR = 2.0  # what one measurement can say against the estimate
UP, DOWN = 0.5, 0.1  # how far the estimate follows, as a power of that factor
FADE = 0.02  # of what lies above the linear estimate, each time a smaller bucket is measured
HALF_LIFE_S = 30.0  # of what the speed of prefill remembers
MIN_SPEED_S = 1.0  # of prefill, before its speed is told


class StepShape(NamedTuple):
    """What a step is padded to.

    Fields:
        rows: tokens of a chunk, or sequences of a decode. context: tokens a block table reaches.
    """

    is_prefill: bool
    rows: int
    context: int


class StepTimes:
    """An estimate per bucket; no bucket is known before its first step.

    Args:
        prefill_buckets: tokens of a chunk, ascending; multiples of the grid.
        decode_buckets: sequences of a decode, ascending.
        context_buckets: tokens a block table reaches, ascending.
    """

    def __init__(
        self,
        *,
        prefill_buckets: Sequence[int],
        decode_buckets: Sequence[int],
        context_buckets: Sequence[int],
    ) -> None:
        if not prefill_buckets or any(rows < GRID or rows % GRID for rows in prefill_buckets):
            raise ValueError(
                f"prefill_buckets are {list(prefill_buckets)}, must be multiples of {GRID}"
            )
        self.prefill_buckets = tuple(prefill_buckets)
        self._decode_buckets = tuple(decode_buckets)
        self._context_buckets = tuple(context_buckets)
        self._estimates: dict[StepShape, float] = {}
        self._is_warm: set[StepShape] = set()

    def chunk_shape(self, start: int, num_tokens: int) -> StepShape:
        """Return what a chunk of `num_tokens` tokens behind `start` others is padded to."""
        context = _bucket(self._context_buckets, start + num_tokens)
        return StepShape(True, _bucket(self.prefill_buckets, num_tokens), context)

    def decode_shape(self, num_rows: int, context: int) -> StepShape:
        """Return what a decode is padded to whose longest sequence has `context` tokens."""
        rows = _bucket(self._decode_buckets, num_rows)
        return StepShape(False, rows, _bucket(self._context_buckets, context))

    def observe(self, shape: StepShape, seconds: float) -> None:
        """Take in how long a step took."""
        known = self._estimates.get(shape)
        if known is None:
            self._estimates[shape] = seconds
        elif shape not in self._is_warm:
            # The first step of a bucket also warms it up.
            self._is_warm.add(shape)
            self._estimates[shape] = min(known, seconds)
        elif known > 0.0 and seconds > 0.0:
            factor = min(max(seconds / known, 1 / MAX_FACTOR), MAX_FACTOR)
            self._estimates[shape] = known * factor ** (UP if factor > 1.0 else DOWN)
        else:
            self._estimates[shape] = seconds
        self._fade_larger(shape)

    def expect(self, shape: StepShape) -> float | None:
        """Return the seconds a step is expected to take; None when nothing like it has run."""
        known = self._estimates.get(shape)
        if known is not None:
            return known
        below, above = self._neighbours(shape)
        bounds = [self._estimates[below] * shape.rows / below.rows] if below else []
        bounds += [self._estimates[above]] if above else []
        return min(bounds, default=None)

    def _neighbours(self, shape: StepShape) -> tuple[StepShape | None, StepShape | None]:
        """Return the nearest measured buckets of its kind and context, below and above."""
        ladder = self.prefill_buckets if shape.is_prefill else self._decode_buckets
        measured = [
            other for rows in ladder if (other := shape._replace(rows=rows)) in self._estimates
        ]
        below = [other for other in measured if other.rows < shape.rows]
        above = [other for other in measured if other.rows > shape.rows]
        return (below[-1] if below else None), (above[0] if above else None)

    def _fade_larger(self, shape: StepShape) -> None:
        """Let what once looked slow be tried again.

        A bucket that is too slow to be chosen would never be measured again, though what made it
        slow may be over.
        """
        if not shape.is_prefill:
            return
        for rows in self.prefill_buckets[bisect_right(self.prefill_buckets, shape.rows) :]:
            larger = shape._replace(rows=rows)
            known = self._estimates.get(larger)
            linear = self._estimates[shape] * rows / shape.rows
            if known is not None and known > linear:
                self._estimates[larger] = known - FADE * (known - linear)


class PrefillSpeed:
    """Prompt tokens a second while there are prompts to compute, decodes between them included."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def observe(self, seconds: float, num_tokens: int) -> None:
        """Take in a step while a prompt is not yet computed; `num_tokens` of prompts are its."""
        kept = 0.5 ** (seconds / HALF_LIFE_S)
        self._tokens = self._tokens * kept + num_tokens
        self._seconds = self._seconds * kept + seconds

    @property
    def tokens_per_s(self) -> float | None:
        """The speed; None before there is enough to tell it from."""
        if self._seconds < MIN_SPEED_S or not self._tokens:
            return None
        return self._tokens / self._seconds


def _bucket(ladder: Sequence[int], size: int) -> int:
    """Return the smallest rung that holds `size`, or the last."""
    return ladder[min(bisect_left(ladder, size), len(ladder) - 1)]
