"""Norms and gates that give an element the same bits wherever it lies in a tensor.

torch's vectorised `sigmoid` and `exp` round differently in the scalar tail of a contiguous tensor,
so a row's value would depend on how many rows are beside it. Padding the last dimension to whole
vector blocks leaves no tail.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

VECTOR_BLOCK = 32  # elements of torch's unrolled inner loop with 512-bit vectors


def sigmoid(x: Tensor) -> Tensor:
    """Logistic function without a vector tail."""
    columns = x.shape[-1]
    missing = -columns % VECTOR_BLOCK
    if missing == 0:
        return torch.sigmoid(x)
    return torch.sigmoid(F.pad(x, (0, missing)))[..., :columns]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise the last dimension in float32, round, then scale by the weight."""
    if x.dtype == torch.float32:
        return F.rms_norm(x, weight.shape, weight, eps)
    return F.rms_norm(x.float(), weight.shape, None, eps).to(x.dtype) * weight


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Normalise the last dimension in float32 and round once."""
    return F.layer_norm(x.float(), weight.shape, weight.float(), bias.float(), eps).to(x.dtype)


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """Clamped SwiGLU: the gate is limited above, the up projection on both sides."""
    return F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)
