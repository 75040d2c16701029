"""Top-k whose ties go to the lower index.

`torch.topk` promises no order among equals and a stable sort costs many times more. A float32
score and its index make one integer key, so no two keys are equal and one top-k settles both.

A long row is cut into blocks of neighbours first, ordered by their best entry, equals by index. The
k best entries lie in the k best blocks: an entry outside of them has k blocks before it, each with
an entry that beats it. So one pass finds the maxima, and keys are made for k blocks only; the
number of passes depends neither on k nor on the scores.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 32  # entries a block; torch reduces shorter ones entry by entry
_LOWEST = -(1 << 31)
_LOW_WORD = 0xFFFF_FFFF


def max_candidates(n: int, k: int) -> int:
    """Count the entries of a row of n that are given keys at one time.

    Rows of 64 k or more are cut into blocks: from there on `torch.topk` would sort, at a cost that
    depends on k and on the scores' order; below it selects in linear time.
    """
    return n if n < 2 * BLOCK * k else (k + 1) * BLOCK


def top_k_indices(scores: Tensor, k: int, *, limits: Tensor | None = None) -> Tensor:
    """Pick the k highest scores of each row; among equals the lower index wins.

    Args:
        scores: float32 [..., n]; -inf is lowest, 0.0 and -0.0 are equal.
        k: 1 <= k <= n.
        limits: int64 [...]; only entries below it count, the others may hold anything. A row with
            fewer than k of them is filled up with indices at its limit or above.

    Returns:
        Indices [..., k], int64, in no particular order.
    """
    n = scores.shape[-1]
    if max_candidates(n, k) == n:
        return _pick(scores, torch.arange(n, device=scores.device), limits, k)
    if n % BLOCK:
        scores = F.pad(scores, (0, -n % BLOCK), value=float("-inf"))
    maxima = scores.view(*scores.shape[:-1], -1, BLOCK).amax(dim=-1)
    if limits is not None:
        # The block a limit cuts is taken whatever it holds, and one more block than k for it.
        block = torch.arange(maxima.shape[-1], device=scores.device)
        cut = limits.div(BLOCK, rounding_mode="floor").unsqueeze(-1)
        maxima = torch.where(block < cut, maxima, float("-inf"))
        maxima = torch.where(block == cut, float("inf"), maxima)
    blocks = top_k_indices(maxima, k if limits is None else k + 1)
    member = torch.arange(BLOCK, device=scores.device)
    entries = (blocks.unsqueeze(-1) * BLOCK + member).flatten(-2)
    return _pick(scores.gather(-1, entries), entries, limits, k)


def _pick(scores: Tensor, index: Tensor, limits: Tensor | None, k: int) -> Tensor:
    """Pick among entries given with their index in the row."""
    if limits is not None:
        scores = torch.where(index < limits.unsqueeze(-1), scores, float("-inf"))
    bits = scores.view(torch.int32)
    # Sign and magnitude to an ordered integer; both zeros become 0.
    ordered = torch.where(bits < 0, _LOWEST - bits, bits).to(torch.int64)
    keys = torch.add(_LOW_WORD - index, ordered, alpha=1 << 32)
    best = torch.topk(keys, k, dim=-1, sorted=False).values
    return _LOW_WORD - (best & _LOW_WORD)
