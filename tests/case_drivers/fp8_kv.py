"""Records of kind `fp8_kv`: values written to an FP8 cache and read back."""

from __future__ import annotations

import math
from typing import Any

import torch

from case_drivers.outcome import PASSED, Outcome, failed
from trnrt_kernels.reference.paging import decode_fp8, encode_fp8, read_rows, write_rows

KNOWN_EXPECTATIONS = {"read_back", "rel_tol", "flagged_non_finite"}
CONVENTION = "stored = value / scale"


def run(record: dict[str, Any]) -> Outcome:
    """Write the record's values as one row each, read them, compare."""
    expect = record["expect"]
    if unknown := set(expect) - KNOWN_EXPECTATIONS:
        return failed(f"the driver does not know expect {sorted(unknown)}")
    if record.get("convention", CONVENTION) != CONVENTION:
        return failed(f"the convention is {CONVENTION!r}, not {record['convention']!r}")
    values = torch.tensor([float(value) for value in record["values"]])
    found = _round_trip(values, record["scale"])
    if expect.get("flagged_non_finite"):
        return _check_flags(values, found)
    wanted, tolerance = torch.tensor(expect["read_back"]), expect.get("rel_tol", 0.0)
    is_near = (found - wanted).abs() <= tolerance * wanted.abs()
    return PASSED if bool(is_near.all()) else failed(f"read back {found.tolist()}")


def _round_trip(values: torch.Tensor, scale: float) -> torch.Tensor:
    """Through the cache's own rows where they have the record's scale, which is one."""
    if scale != 1.0:
        return decode_fp8(encode_fp8(values, scale=scale), torch.float32, scale=scale)
    rows = torch.zeros(len(values) + 1, 1).to(torch.float8_e4m3fn)
    index = torch.arange(1, len(values) + 1)
    write_rows(rows, index, values.unsqueeze(1))
    return read_rows(rows, index, torch.float32).squeeze(1)


def _check_flags(values: torch.Tensor, found: torch.Tensor) -> Outcome:
    """A value that is not finite must stay so: logits that see it fail the request."""
    for value, read in zip(values.tolist(), found.tolist(), strict=True):
        if math.isfinite(value) != math.isfinite(read):
            return failed(f"{value} was read back as {read}")
    return PASSED
