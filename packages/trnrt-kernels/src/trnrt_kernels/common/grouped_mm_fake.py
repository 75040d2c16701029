"""A fake implementation of torch's grouped product that takes float32.

The CPU kernel runs float32 and bfloat16; torch's own fake implementation refuses float32, so a
float32 step could not be exported. A test fails when torch accepts it: then this module goes.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


@cache
def register() -> None:
    """Register the fake implementation, once."""
    torch.library.register_fake("aten::_grouped_mm", _grouped_mm, allow_override=True)


def _grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """Rows [X, K] times groups [R, K, N] by ends [R]: the shape of the result."""
    if mat_a.dim() != 2 or mat_b.dim() != 3 or offs is None or bias is not None:
        raise NotImplementedError("only rows grouped by offsets, without bias, are used here")
    return mat_a.new_empty((mat_a.shape[0], mat_b.shape[2]), dtype=out_dtype or mat_a.dtype)
