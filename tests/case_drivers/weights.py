"""Records of kind `weights`: the loader's check and dequantisation of one FP8 matrix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from case_drivers.outcome import PASSED, Outcome, failed, not_yet
from trnrt_kernels.common.fp8 import BLOCK, dequantise_blocks
from trnrt_kernels.models.glm5_next.inventory import Component, HeldTensor, Part, Precision
from trnrt_kernels.models.glm5_next.tensor_check import part_findings
from trnrt_kernels.models.safetensors_header import TensorEntry

NAME = "model.layers.0.mlp.down_proj.weight"
PLACEHOLDER = "tensor name"
KNOWN_EXPECTATIONS = {"error_names", "dequant_equals_unsharded"}


def run(record: dict[str, Any]) -> Outcome:
    """Check a weight and its scales of the record's shapes, then dequantise them."""
    if record.get("tp", 1) != 1:
        return not_yet("waits for ranks")
    if record.get("block") != [BLOCK, BLOCK]:
        return failed(f"block {record.get('block')} is not the released {[BLOCK, BLOCK]}")
    expect = record["expect"]
    if unknown := set(expect) - KNOWN_EXPECTATIONS:
        return failed(f"the driver does not know expect {sorted(unknown)}")
    weight_shape, scale_shape = tuple(record["weight_shape"]), tuple(record["scale_shape"])
    findings = _findings(weight_shape, scale_shape)
    if names := expect.get("error_names"):
        text = "\n".join(findings)
        wanted = [NAME if name == PLACEHOLDER else name for name in names]
        missing = [name for name in wanted if name not in text]
        return failed(f"{missing} not in {findings}") if missing else PASSED
    if findings:
        return failed(f"refused: {findings}")
    return _compare_dequantised(weight_shape, scale_shape)


def _findings(weight_shape: tuple[int, ...], scale_shape: tuple[int, ...]) -> list[str]:
    part = Part(NAME, weight_shape, 0, weight_shape[0])
    held = HeldTensor(
        "down_proj", 0, weight_shape, Precision.BLOCK_FP8, Component.DENSE_FFN, (part,)
    )
    weight = TensorEntry(NAME, "F8_E4M3", weight_shape, Path("model.safetensors"), 0, 0)
    scale = TensorEntry(part.scale_name, "F32", scale_shape, Path("model.safetensors"), 0, 0)
    return list(part_findings(held, part, weight, scale))


def _compare_dequantised(weight_shape: tuple[int, ...], scale_shape: tuple[int, ...]) -> Outcome:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randn(weight_shape, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.rand(scale_shape, generator=generator)
    rows, columns = (torch.arange(size) // BLOCK for size in weight_shape)
    expected = codes.float() * scales[rows[:, None], columns[None, :]]
    found = dequantise_blocks(codes, scales, out_RC=torch.empty(weight_shape))
    return PASSED if torch.equal(found, expected) else failed("values differ from code x scale")
