"""`dense_half` and `moe_half` in both forms against loops over tokens and experts in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support import naive_halves as naive
from support.op_driver import OpDriver, random_streams

FLOAT_ERROR = 2e-5
GROUPINGS = [(1, 1), (4, 2)]


def expected_moe(driver: OpDriver, streams: Tensor, n_group: int, topk_group: int) -> Tensor:
    def block(xs: list[Tensor]) -> list[Tensor]:
        rule = {"k": 3, "n_group": n_group, "topk_group": topk_group, "limit": 1.0}
        return [naive.moe(x, driver.weights, **rule) for x in xs]

    return naive.half(streams, driver.weights, "ffn", block)


@pytest.mark.parametrize("row_tile", [1, 4], ids="tile{}".format)
@pytest.mark.parametrize("grouping", GROUPINGS)
@pytest.mark.parametrize("rows", [1, 3, 12, 63], ids="T{}".format)
def test_routed_experts(rows: int, grouping: tuple[int, int], row_tile: int) -> None:
    driver = OpDriver("moe_half", n_group=grouping[0], topk_group=grouping[1], row_tile=row_tile)
    streams = random_streams(rows)
    wanted = expected_moe(driver, streams, *grouping)
    assert (driver.prefill(streams) - wanted).abs().max() < FLOAT_ERROR
    assert (driver.decode(streams, [0] * rows) - wanted).abs().max() < FLOAT_ERROR


@pytest.mark.parametrize("row_tile", [1, 4], ids="tile{}".format)
def test_rows_that_are_not_live_join_no_expert(row_tile: int) -> None:
    driver, streams = OpDriver("moe_half", row_tile=row_tile), random_streams(12)
    wanted = expected_moe(driver, streams[:7], 1, 1)
    streams[7:] = float("nan")
    is_live = torch.arange(12) < 7
    actual = driver.decode(streams, [0] * 12, is_live_B=is_live)[:7]
    assert (actual - wanted).abs().max() < FLOAT_ERROR
    padded = driver.prefill(streams, num_tokens=torch.tensor([7]))[:7]
    assert (padded - wanted).abs().max() < FLOAT_ERROR


@pytest.mark.parametrize("rows", [1, 63], ids="T{}".format)
def test_dense_block(rows: int) -> None:
    driver, streams = OpDriver("dense_half"), random_streams(rows)
    weights = [driver.weights[f"{name}_proj"] for name in ("gate_up", "down")]

    def block(xs: list[Tensor]) -> list[Tensor]:
        return [naive.swiglu(x, *weights, 1.0) for x in xs]

    wanted = naive.half(streams, driver.weights, "ffn", block)
    assert (driver.prefill(streams) - wanted).abs().max() < FLOAT_ERROR
    assert (driver.decode(streams, [0] * rows) - wanted).abs().max() < FLOAT_ERROR
