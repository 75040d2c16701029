"""`dsa_half`, one token a row, against expanded attention in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support import naive_halves as naive
from support.op_driver import SIZES, OpDriver, random_streams

FLOAT_ERROR = 2e-5
KPOOL, NUM_POOLS = 4, 3


@pytest.mark.parametrize("batch", [1, 4, 12], ids="B{}".format)
@pytest.mark.parametrize("row_tile", [1, 4], ids="tile{}".format)
def test_rows_at_different_lengths(batch: int, row_tile: int) -> None:
    """Row i has 3i tokens behind it, put there by the chunk form."""
    driver = OpDriver("dsa_half", num_sequences=batch, row_tile=row_tile)
    streams = random_streams(batch, 3 * batch + 2)
    for row in range(1, batch):
        driver.prefill(streams[row, : 3 * row], sequence=row)
    for step in range(2):
        positions = [3 * row + step for row in range(batch)]
        tokens = torch.stack([streams[row, position] for row, position in enumerate(positions)])
        actual, selected = driver.decode(tokens, positions)
        for row, position in enumerate(positions):
            pools: list[list[int]] = []

            def block(xs: list[Tensor], pools: list[list[int]] = pools) -> list[Tensor]:
                pools[:] = naive.select(
                    xs, driver.weights, index_heads=SIZES["I"], pool_size=KPOOL, num_pools=NUM_POOLS
                )
                return naive.dsa(xs, driver.weights, pools, heads=SIZES["A"], pool_size=KPOOL)

            wanted = naive.half(streams[row, : position + 1], driver.weights, "attn", block)[-1]
            assert [pool for pool in selected[row].tolist() if pool >= 0] == pools[-1]
            assert (actual[row] - wanted).abs().max() < FLOAT_ERROR


def test_a_pool_is_cleared_by_its_first_token() -> None:
    """What an earlier owner left in a page cannot be seen, NaN included."""
    driver, streams = OpDriver("dsa_half"), random_streams(6)
    for name in driver.mutated():
        driver.caches[name].fill_(float("nan"))
    outputs = [driver.decode(streams[t : t + 1], [t])[0] for t in range(6)]
    assert all(output.isfinite().all() for output in outputs)
    first_page = driver.caches["latents"][driver.block_table(0)[0]]
    assert first_page[6:8].eq(0).all()


def test_a_shared_layer_attends_to_what_it_is_given() -> None:
    driver, streams = OpDriver("dsa_shared_half"), random_streams(10)
    driver.prefill(
        streams[:9], selected_TX=torch.full((9, NUM_POOLS), -1).index_fill(1, torch.tensor([0]), 0)
    )
    actual = driver.decode(streams[9:], [9], selected_BX=torch.tensor([[1, -1, -1]]))

    def block(xs: list[Tensor]) -> list[Tensor]:
        everyone = [[0] if t >= 3 else [] for t in range(9)]
        return naive.dsa(xs, driver.weights, [*everyone, [1]], heads=SIZES["A"], pool_size=KPOOL)

    wanted = naive.half(streams, driver.weights, "attn", block)[-1]
    assert (actual[0] - wanted).abs().max() < FLOAT_ERROR
