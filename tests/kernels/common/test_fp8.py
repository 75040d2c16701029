"""FP8 blocks of any size, against a scale lookup per element."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trnrt_kernels.common.fp8 import BLOCK, E4M3FN_MAX, dequantise_blocks, quantise_blocks
from trnrt_kernels.common.fp8 import scale_shape as shape_of_scales

SIZES = st.one_of(st.integers(1, 300), st.sampled_from([1, 127, 128, 129, 255, 256, 257]))


def random_codes(rows, columns, generator):
    """Codes over the whole format, NaN codes excluded."""
    bits = torch.randint(0, 256, (rows, columns), generator=generator, dtype=torch.uint8)
    bits[(bits & 0x7F) == 0x7F] = 0x7E
    return bits.view(torch.float8_e4m3fn)


@settings(max_examples=60, deadline=None)
@given(rows=SIZES, columns=SIZES, seed=st.integers(0, 2**31))
def test_each_element_is_code_times_scale_of_its_block(rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    codes = random_codes(rows, columns, generator)
    scales = torch.rand(shape_of_scales((rows, columns)), generator=generator) + 0.01
    row_block = (torch.arange(rows) // BLOCK)[:, None]
    column_block = (torch.arange(columns) // BLOCK)[None, :]
    expected = codes.float() * scales[row_block, column_block]
    out = dequantise_blocks(codes, scales, out_RC=torch.full((rows, columns), float("nan")))
    assert torch.equal(out, expected)


@settings(max_examples=30, deadline=None)
@given(rows=SIZES, columns=SIZES, seed=st.integers(0, 2**31))
def test_bfloat16_target_is_the_float32_product_rounded_once(rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    codes = random_codes(rows, columns, generator)
    scales = torch.rand(shape_of_scales((rows, columns)), generator=generator)
    wide = dequantise_blocks(codes, scales, out_RC=torch.empty(rows, columns))
    narrow = torch.empty(rows, columns, dtype=torch.bfloat16)
    assert torch.equal(dequantise_blocks(codes, scales, out_RC=narrow), wide.bfloat16())


@settings(max_examples=40, deadline=None)
@given(rows=SIZES, columns=SIZES, seed=st.integers(0, 2**31), size=st.floats(1e-3, 1e3))
def test_quantising_keeps_every_value_within_half_a_step(rows, columns, seed, size):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, columns, generator=generator) * size
    codes, scales = quantise_blocks(weight)
    out = dequantise_blocks(codes, scales, out_RC=torch.empty(rows, columns))
    # e4m3 has three mantissa bits: half a step is 1/16 of the value, or 2**-10 near zero
    scale_of = scales.repeat_interleave(BLOCK, 0)[:rows].repeat_interleave(BLOCK, 1)[:, :columns]
    bound = torch.maximum(weight.abs() / 16, scale_of * 2.0**-10) * 1.001
    assert bool(((out - weight).abs() <= bound).all())
    assert codes.float().abs().max() <= E4M3FN_MAX


def test_zero_block_stays_zero():
    codes, scales = quantise_blocks(torch.zeros(130, 5))
    assert torch.equal(codes.float(), torch.zeros(130, 5))
    assert torch.equal(scales, torch.ones(2, 1))


def test_infinite_weight_is_refused():
    with pytest.raises(ValueError, match="not finite"):
        quantise_blocks(torch.tensor([[1.0, float("inf")]]))


@pytest.mark.parametrize("shape", [(1, 2), (2, 1), (2, 3), (4,)])
def test_scales_of_another_shape_are_refused(shape):
    codes = torch.zeros(200, 200).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match=r"must be \[2, 2\]"):
        dequantise_blocks(codes, torch.ones(shape), out_RC=torch.empty(200, 200))
