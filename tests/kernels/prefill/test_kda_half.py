"""`kda_half`, chunk form, against the token-by-token formulas in float64."""

from __future__ import annotations

import pytest
import torch

from support import naive_halves as naive
from support.op_driver import SIZES, OpDriver, random_streams

FLOAT_ERROR = 2e-5  # float32 against float64 over 63 tokens; measured 3e-6


def expected(driver: OpDriver, streams: torch.Tensor) -> torch.Tensor:
    def block(xs: list[torch.Tensor]) -> list[torch.Tensor]:
        return naive.kda(xs, driver.weights, SIZES["H"])

    return naive.half(streams, driver.weights, "attn", block)


@pytest.mark.parametrize("tokens", [1, 16, 63], ids="T{}".format)
def test_chunk_equals_the_recurrence(tokens: int) -> None:
    driver, streams = OpDriver("kda_half"), random_streams(tokens)
    actual = driver.prefill(streams)
    assert (actual - expected(driver, streams)).abs().max() < FLOAT_ERROR


@pytest.mark.parametrize("cut", [1, 2, 16, 31])
def test_a_second_chunk_continues_the_first(cut: int) -> None:
    driver, streams = OpDriver("kda_half"), random_streams(40)
    actual = torch.cat((driver.prefill(streams[:cut]), driver.prefill(streams[cut:], cut)))
    assert (actual - expected(driver, streams)).abs().max() < FLOAT_ERROR


def test_strongest_decay_stays_finite() -> None:
    """Every gate at its bound: 16 tokens span e^80, which float32 holds."""
    driver, streams = OpDriver("kda_half"), random_streams(48)
    driver.weights["dt_bias"] += 1000.0
    actual = driver.prefill(streams)
    assert (actual - expected(driver, streams)).abs().max() < FLOAT_ERROR


def test_padding_rows_leave_the_state_alone() -> None:
    driver, streams = OpDriver("kda_half"), random_streams(32)
    padded = streams.clone()
    padded[21:] = float("nan")
    rows = driver.prefill(padded, num_tokens=torch.tensor([21]))[:21]
    caches = {name: tensor[1].clone() for name, tensor in driver.caches.items()}
    alone = driver.prefill(streams[:21])
    assert torch.equal(rows, alone)
    assert all(torch.equal(caches[name], driver.caches[name][1]) for name in caches)
