"""`kda_half`, one token a row, against the formulas in float64."""

from __future__ import annotations

import pytest
import torch

from support import naive_halves as naive
from support.op_driver import SIZES, OpDriver, random_streams

FLOAT_ERROR = 2e-5


@pytest.mark.parametrize("batch", [1, 4, 8, 12], ids="B{}".format)
def test_rows_at_different_lengths(batch: int) -> None:
    """Row i has i tokens behind it, put there by the chunk form."""
    driver = OpDriver("kda_half", num_sequences=batch)
    streams = random_streams(batch, batch + 3)
    for row in range(1, batch):
        driver.prefill(streams[row, :row], sequence=row)
    for step in range(3):
        positions = [row + step for row in range(batch)]
        actual = driver.decode(
            torch.stack([streams[row, position] for row, position in enumerate(positions)]),
            positions,
        )
        for row, position in enumerate(positions):
            wanted = naive.half(
                streams[row, : position + 1],
                driver.weights,
                "attn",
                lambda xs: naive.kda(xs, driver.weights, SIZES["H"]),
            )[-1]
            assert (actual[row] - wanted).abs().max() < FLOAT_ERROR


def test_only_the_rows_own_slots_are_written() -> None:
    driver = OpDriver("kda_half", num_sequences=3)
    driver.decode(random_streams(1), [0], state_slots_B=torch.tensor([2]))
    for name in driver.mutated():
        written = ~driver.caches[name].isnan().flatten(1).any(dim=1)
        assert written.tolist() == [False, False, True, False]
