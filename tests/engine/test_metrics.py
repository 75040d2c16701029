"""Histograms count by upper bound."""

from __future__ import annotations

from trnrt_engine.metrics import Histogram


def test_value_at_a_bound_belongs_to_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    snapshot = histogram.snapshot()
    assert snapshot.counts == (2, 2, 1)
    assert snapshot.total == 14.0
    histogram.observe(0.1)
    assert snapshot.counts == (2, 2, 1)
