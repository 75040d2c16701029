"""Top-k whose ties go to the lower index.

`torch.topk` promises no order among equals and a stable sort costs many times more. A float32
score and its index make one integer key, so no two keys are equal and one top-k settles both.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LOWEST = -(1 << 31)


def top_k_indices(scores: Tensor, k: int) -> Tensor:
    """Pick the k highest scores of each row; among equals the lower index wins.

    Args:
        scores: float32 [..., n]; -inf is lowest, 0.0 and -0.0 are equal.
        k: 1 <= k <= n.

    Returns:
        Indices [..., k], int64, in no particular order.
    """
    n = scores.shape[-1]
    bits = scores.view(torch.int32)
    # Sign and magnitude to an ordered integer; both zeros become 0.
    ordered = torch.where(bits < 0, _LOWEST - bits, bits).to(torch.int64)
    reversed_index = torch.arange(n - 1, -1, -1, device=scores.device)
    keys = torch.add(reversed_index, ordered, alpha=1 << 32)
    best = torch.topk(keys, k, dim=-1, sorted=False).values
    return n - 1 - (best & 0xFFFF_FFFF)
