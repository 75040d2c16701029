"""Norms and gates that give an element the same bits wherever it lies in a tensor.

torch's vectorised `sigmoid` rounds differently in the scalar tail of what it walks as one line.
In a contiguous tensor that line runs over all rows, so a row's value would depend on how many rows
are beside it: padding the last dimension to whole vector blocks leaves no tail. A slice of columns
is walked row by row and needs nothing.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_INT_OF_SIZE = {2: torch.int16, 4: torch.int32}
VECTOR_BLOCK = 32  # elements of torch's unrolled inner loop with 512-bit vectors


def sigmoid(x: Tensor) -> Tensor:
    """Logistic function, [..., rows, columns], without a vector tail across rows."""
    columns = x.shape[-1]
    missing = -columns % VECTOR_BLOCK
    if missing == 0 or x.stride(-2) != columns:
        return torch.sigmoid(x)
    return torch.sigmoid(F.pad(x, (0, missing)))[..., :columns]


def cleared(x: Tensor, is_cleared: Tensor) -> Tensor:
    """Zeros where `is_cleared`, broadcast against `x`, whatever is there: NaN times 0 is NaN.

    By the bits, as `where` with a broadcast condition does not vectorise: 4 times the time.
    """
    bits = x.view(_INT_OF_SIZE[x.element_size()])
    return (bits & (is_cleared.to(bits.dtype) - 1)).view(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last dimension in float32, round, then scale by the weight."""
    if x.dtype == torch.float32:
        return F.rms_norm(x, weight.shape, weight, eps)
    return F.rms_norm(x.float(), weight.shape, None, eps).to(x.dtype) * weight


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Normalise the last dimension in float32 and round once."""
    return F.layer_norm(x.float(), weight.shape, weight.float(), bias.float(), eps).to(x.dtype)


def swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """Clamped SwiGLU of [..., gate | up]: the gate is limited above, up on both sides."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
