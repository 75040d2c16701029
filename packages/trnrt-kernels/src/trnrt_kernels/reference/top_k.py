"""Top-k whose ties go to the lower index.

`torch.topk` promises no order among equals and a stable sort costs many times more. A float32
score and its index make one integer key, so no two keys are equal and one top-k settles both.
"""

from __future__ import annotations

import torch
from torch import Tensor

_MAGNITUDE = 0x7FFF_FFFF


def top_k_indices(scores: Tensor, k: int) -> Tensor:
    """Pick the k highest scores of each row; among equals the lower index wins.

    Args:
        scores: float32 [..., n]; -inf is lowest, 0.0 and -0.0 are equal.
        k: 1 <= k <= n.

    Returns:
        Indices [..., k], int64, in no particular order.
    """
    n = scores.shape[-1]
    bits = torch.where(scores == 0, 0.0, scores).view(torch.int32)
    ordered = torch.where(bits < 0, bits ^ _MAGNITUDE, bits).to(torch.int64)
    reversed_index = torch.arange(n - 1, -1, -1, device=scores.device)
    keys = ordered * (1 << 32) + reversed_index
    best = torch.topk(keys, k, dim=-1, sorted=False).values
    return n - 1 - (best & 0xFFFF_FFFF)
