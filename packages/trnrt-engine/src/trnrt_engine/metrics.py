"""Counters and histograms as plain structs; who serves them formats them.

Written by the engine's thread only. Any thread may read: each value is right by itself, two
values read together may be a step apart.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

from trnrt_engine.api import HistogramSnapshot

SECONDS_BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0),
)


class Histogram:
    """Count observations by upper bound."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...] = SECONDS_BOUNDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count one observation; a value equal to a bound belongs to it."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def snapshot(self) -> HistogramSnapshot:
        """Copy what has been counted."""
        return HistogramSnapshot(self._bounds, tuple(self._counts), self._total)


@dataclass(slots=True)
class EngineMetrics:
    """What an engine counts; meanings in `EngineStats`."""

    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    requests_finished: int = 0
    requests_failed: int = 0
    requests_aborted: int = 0
    stall_overruns: int = 0
    queue_s: Histogram = field(default_factory=Histogram)
    time_to_first_token_s: Histogram = field(default_factory=Histogram)
    inter_token_s: Histogram = field(default_factory=Histogram)
    step_s: Histogram = field(default_factory=Histogram)

    def reset(self) -> None:
        """Count from zero again."""
        self.__init__()  # type: ignore[misc]
