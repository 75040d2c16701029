"""FP8 rows of the caches: clamped, idempotent, and honest about what is not finite."""

from __future__ import annotations

import math

import torch

from support.op_driver import OpDriver, random_streams
from trnrt_kernels.common.fp8 import TRN2_E4M3_MAX
from trnrt_kernels.reference.paging import decode_fp8, encode_fp8, read_rows, write_rows


def test_values_are_clamped_before_they_are_rounded() -> None:
    values = torch.tensor([1.0, 239.0, 240.0, 241.0, 449.0, 1e9, -500.0])
    found = decode_fp8(encode_fp8(values), torch.float32)
    assert found.tolist() == [1.0, 240.0, 240.0, 240.0, 240.0, 240.0, -240.0]


def test_what_is_not_finite_is_read_as_nan() -> None:
    values = torch.tensor([math.inf, -math.inf, math.nan])
    assert bool(decode_fp8(encode_fp8(values), torch.float32).isnan().all())


def test_a_second_round_trip_changes_nothing() -> None:
    """A pool is read and written again with each token that joins it."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    kept = codes[codes.float().abs() <= TRN2_E4M3_MAX]
    for dtype in (torch.float32, torch.bfloat16):
        again = encode_fp8(decode_fp8(kept, dtype))
        assert torch.equal(again.view(torch.uint8), kept.view(torch.uint8))


def test_stored_is_value_divided_by_scale() -> None:
    codes = encode_fp8(torch.tensor([600.0, 4.0]), scale=4.0)
    assert codes.float().tolist() == [144.0, 1.0]
    assert decode_fp8(codes, torch.float32, scale=4.0).tolist() == [576.0, 4.0]


def test_other_rows_are_not_touched() -> None:
    rows = torch.ones(4, 3).to(torch.float8_e4m3fn)
    write_rows(rows, torch.tensor([2]), torch.full((1, 3), 7.0))
    found = read_rows(rows, torch.arange(4), torch.float32)
    assert found.tolist() == [[1.0] * 3, [1.0] * 3, [7.0] * 3, [1.0] * 3]


def fp8_driver() -> OpDriver:
    driver = OpDriver("dsa_half")
    for name, dtype in (("latents", torch.float8_e4m3fn), ("pool_keys", torch.bfloat16)):
        driver.caches[name] = driver.caches[name].to(dtype)
    return driver


def test_latents_beyond_the_range_are_clamped_in_both_forms() -> None:
    driver = fp8_driver()
    driver.weights["kv_a_norm"] *= 1e4
    chunk, _ = driver.prefill(random_streams(20))
    row, _ = driver.decode(random_streams(1, seed=1), [20])
    latents = driver.caches["latents"][driver.block_table(0)[:2]].flatten(0, 1)[:21].float()
    assert latents.abs().max() == TRN2_E4M3_MAX
    assert bool(chunk.isfinite().all())
    assert bool(row.isfinite().all())


def test_an_infinite_latent_reaches_the_output_in_both_forms() -> None:
    """Not as 240: the logits show it, and the step's `is_finite` fails the request."""
    for form in ("prefill", "decode"):
        driver = fp8_driver()
        driver.prefill(random_streams(20))
        driver.weights["kv_a_norm"][3] = math.inf
        streams = random_streams(1, seed=1)
        out, _ = driver.prefill(streams, 20) if form == "prefill" else driver.decode(streams, [20])
        assert bool(out.isnan().any()), form
