"""`dsa_half` and `dsa_shared_half`, chunk form, against expanded attention in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support import naive_halves as naive
from support.op_driver import SIZES, OpDriver, random_streams
from trnrt_kernels.common import score_budget
from trnrt_kernels.reference import indexer

FLOAT_ERROR = 2e-5
KPOOL, NUM_POOLS = 4, 3


def expected(driver: OpDriver, streams: Tensor) -> tuple[Tensor, list[list[int]]]:
    selections: list[list[int]] = []

    def block(xs: list[Tensor]) -> list[Tensor]:
        selections[:] = naive.select(
            xs, driver.weights, index_heads=SIZES["I"], pool_size=KPOOL, num_pools=NUM_POOLS
        )
        return naive.dsa(xs, driver.weights, selections, heads=SIZES["A"], pool_size=KPOOL)

    return naive.half(streams, driver.weights, "attn", block), selections


def as_lists(selected: Tensor) -> list[list[int]]:
    assert all(row == sorted(row, key=lambda p: (p < 0, p)) for row in selected.tolist())
    return [[pool for pool in row if pool >= 0] for row in selected.tolist()]


@pytest.mark.parametrize("tokens", [1, 4, 35, 63], ids="T{}".format)
def test_chunk_equals_expanded_attention(tokens: int) -> None:
    driver, streams = OpDriver("dsa_half"), random_streams(tokens)
    actual, selected = driver.prefill(streams)
    wanted, selections = expected(driver, streams)
    assert as_lists(selected) == selections
    assert (actual - wanted).abs().max() < FLOAT_ERROR


@pytest.mark.parametrize("cut", [1, 3, 4, 6, 17, 32])
def test_a_second_chunk_continues_the_first(cut: int) -> None:
    driver, streams = OpDriver("dsa_half"), random_streams(40)
    first, second = driver.prefill(streams[:cut]), driver.prefill(streams[cut:], cut)
    wanted, selections = expected(driver, streams)
    assert as_lists(torch.cat((first[1], second[1]))) == selections
    assert (torch.cat((first[0], second[0])) - wanted).abs().max() < FLOAT_ERROR


def test_equal_scores_go_to_the_lower_pool() -> None:
    driver, streams = OpDriver("dsa_half"), random_streams(40)
    driver.weights["index_weights_proj"].zero_()
    _, selected = driver.prefill(streams)
    assert as_lists(selected)[-1] == [0, 1, 2]
    assert as_lists(selected)[6] == [0]


def test_scores_do_not_depend_on_their_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = random_streams(63)
    whole = OpDriver("dsa_half").prefill(streams)
    monkeypatch.setattr(score_budget, "SCORE_BUDGET_BYTES", 1)
    monkeypatch.setattr(indexer, "TILE_BYTES", 1)
    tiled = OpDriver("dsa_half").prefill(streams)
    assert torch.equal(tiled[1], whole[1])
    assert (tiled[0] - whole[0]).abs().max() < FLOAT_ERROR


def test_padding_rows_write_nothing_but_scratch() -> None:
    driver, streams = OpDriver("dsa_half"), random_streams(32)
    padded = streams.clone()
    padded[21:] = float("nan")
    rows, selected = driver.prefill(padded, num_tokens=torch.tensor([21]))
    caches = {name: tensor[1:].clone() for name, tensor in driver.caches.items()}
    fresh = OpDriver("dsa_half")
    alone, own_selected = fresh.prefill(streams[:21])
    assert torch.equal(rows[:21], alone)
    assert torch.equal(selected[:21], own_selected)
    for name, tensor in caches.items():
        assert torch.equal(tensor.nan_to_num(7.0), fresh.caches[name][1:].nan_to_num(7.0))


def test_a_shared_layer_attends_to_what_it_is_given() -> None:
    driver, streams = OpDriver("dsa_shared_half"), random_streams(20)
    selections = [[p for p in (0, 2) if (p + 1) * KPOOL <= t + 1] for t in range(20)]
    selected = torch.tensor([[*row, *[-1] * (NUM_POOLS - len(row))] for row in selections])

    def block(xs: list[Tensor]) -> list[Tensor]:
        return naive.dsa(xs, driver.weights, selections, heads=SIZES["A"], pool_size=KPOOL)

    actual = driver.prefill(streams, selected_TX=selected)
    wanted = naive.half(streams, driver.weights, "attn", block)
    assert (actual - wanted).abs().max() < FLOAT_ERROR
