"""Latent attention without positions, in its absorbed form over selected pools.

T queries, A heads, E key features a head, F value features a head, L latent size, P tokens a pool,
N selected pools. One latent per token serves as key and value of all heads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.reference.elementwise import rms_norm
from trnrt_kernels.reference.paging import Pages, pool_rows, read_rows

QUERY_TILE = 8  # queries whose latents are gathered at once: they should stay in the CPU cache


class MlaWeights(NamedTuple):
    """Weights of latent attention, in the order of the ops' arguments."""

    q_a_proj: Tensor
    q_a_norm: Tensor
    q_b_proj: Tensor
    kv_a_proj: Tensor
    kv_a_norm: Tensor
    kv_b_proj: Tensor
    o_proj: Tensor


class Projected(NamedTuple):
    """What attention needs of each token; the low-rank query also feeds the indexer."""

    r_TQ: Tensor
    q_TAE: Tensor
    latent_TL: Tensor


def project(x_TD: Tensor, weights: MlaWeights, *, num_heads: int, eps: float) -> Projected:
    """Compute queries and the latent of each token."""
    r_TQ = rms_norm(F.linear(x_TD, weights.q_a_proj), weights.q_a_norm, eps)
    q_TAE = F.linear(r_TQ, weights.q_b_proj).view(x_TD.shape[0], num_heads, -1)
    latent_TL = rms_norm(F.linear(x_TD, weights.kv_a_proj), weights.kv_a_norm, eps)
    return Projected(r_TQ, q_TAE, latent_TL)


def attend(
    q_TAE: Tensor,
    weights: MlaWeights,
    latents: Tensor,
    selected_TN: Tensor,
    pages: Pages,
    *,
    row_tile: int,
) -> Tensor:
    """Attend to the selected pools and the open one, and project: [T, D].

    With `row_tile` > 1 the width is always that of the selection, so that sums run over the same
    terms at every context; else it shrinks to the pools the block table has.
    """
    _, num_heads, key_size = q_TAE.shape
    if row_tile == 1:
        selected_TN = selected_TN[:, : pages.num_pools]
    pools_TN, mask_TX = visible(selected_TN, pages)
    up = weights.kv_b_proj.view(num_heads, -1, latents.shape[2])
    key_up_AEL, value_up_AFL = up[:, :key_size], up[:, key_size:]
    absorbed_ATL = torch.bmm(q_TAE.transpose(0, 1), key_up_AEL)
    latent_TAL = _attend_rows(
        absorbed_ATL.transpose(0, 1) * key_size**-0.5,
        pool_rows(latents, pages.pool_size),
        pages.physical(pools_TN),
        mask_TX,
    )
    values_ATF = torch.bmm(latent_TAL.transpose(0, 1), value_up_AFL.transpose(1, 2))
    return F.linear(values_ATF.transpose(0, 1).flatten(1), weights.o_proj)


def visible(selected_TN: Tensor, pages: Pages) -> tuple[Tensor, Tensor]:
    """Add the open pool to a selection and mask what a query must not see.

    Returns:
        Logical pools [T, N+1]; absent ones repeat the query's own pool, which is finite.
        Mask [T, (N+1)*P]: tokens of present pools, and of the open pool those up to the query
        (none when the query completes its pool: then the pool competes on its score).
    """
    pool_size, own_T1 = pages.pool_size, pages.own_pools()
    present = selected_TN >= 0
    pools_TN = torch.cat((torch.where(present, selected_TN, own_T1), own_T1), dim=1)
    offset_T1 = (pages.positions % pool_size).unsqueeze(1)
    member = torch.arange(pool_size, device=own_T1.device)
    tail = (member <= offset_T1) & (offset_T1 < pool_size - 1)
    return pools_TN, torch.cat((present.repeat_interleave(pool_size, dim=1), tail), dim=1)


def _attend_rows(q_TAL: Tensor, latent_rows: Tensor, rows_TN: Tensor, mask_TX: Tensor) -> Tensor:
    """Softmax attention of each scaled query over the tokens of its pool rows: [T, A, L].

    Latents are read in the dtype of the queries, the softmax is float32. Masked tokens must be
    finite, and at least one token of a query must count.
    """
    bias_T1X = torch.where(mask_TX, 0.0, float("-inf")).to(q_TAL.dtype).unsqueeze(1)
    tiles = []
    for first in range(0, q_TAL.shape[0], QUERY_TILE):
        tile = slice(first, first + QUERY_TILE)
        q = q_TAL[tile]
        latents = read_rows(latent_rows, rows_TN[tile], q.dtype)
        latents = latents.view(q.shape[0], -1, q.shape[2])
        scores = torch.baddbmm(bias_T1X[tile], q, latents.transpose(1, 2))
        shares = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        tiles.append(torch.bmm(shares, latents))
    return torch.cat(tiles)
