"""Elementwise parts: an element's bits do not depend on where it lies."""

from __future__ import annotations

import pytest
import torch

from trnrt_kernels.reference.elementwise import rms_norm, sigmoid, swiglu


@pytest.mark.parametrize("columns", [1, 3, 4, 8, 33, 64])
def test_sigmoid_of_a_row_is_the_same_in_any_batch(columns: int) -> None:
    rows = torch.randn(64, columns, generator=torch.Generator().manual_seed(0))
    whole = sigmoid(rows)
    for count in (1, 2, 3, 5, 7, 12, 31):
        assert torch.equal(sigmoid(rows[3 : 3 + count]), whole[3 : 3 + count])
    assert (whole - rows.double().sigmoid()).abs().max() < 1e-6


def test_rms_norm_rounds_before_the_weight() -> None:
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(0)).bfloat16()
    weight = (1 + 0.1 * torch.randn(96, generator=torch.Generator().manual_seed(1))).bfloat16()
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
    assert torch.equal(rms_norm(x, weight, 1e-5), normed.bfloat16() * weight)


def test_swiglu_limits_the_gate_above_only() -> None:
    gate, up = torch.tensor([-50.0, 50.0, 1.0]), torch.tensor([1.0, 1.0, -50.0])
    actual = swiglu(torch.cat((gate, up)), 10.0)
    silu = torch.nn.functional.silu
    expected = torch.stack((silu(gate[0]), silu(torch.tensor(10.0)), -10 * silu(gate[2])))
    assert torch.allclose(actual, expected)
