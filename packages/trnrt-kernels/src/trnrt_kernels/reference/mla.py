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
from trnrt_kernels.reference.paging import physical_pools, pool_rows, read_rows

QUERY_TILE = 32  # queries whose latents are gathered at once: a few MB


class Projected(NamedTuple):
    """What attention needs of each token; the low-rank query also feeds the indexer."""

    r_TQ: Tensor
    q_TAE: Tensor
    latent_TL: Tensor


def project(
    x_TD: Tensor,
    q_a_proj: Tensor,
    q_a_norm: Tensor,
    q_b_proj: Tensor,
    kv_a_proj: Tensor,
    kv_a_norm: Tensor,
    *,
    num_heads: int,
    eps: float,
) -> Projected:
    """Compute queries and the latent of each token."""
    r_TQ = rms_norm(F.linear(x_TD, q_a_proj), q_a_norm, eps)
    q_TAE = F.linear(r_TQ, q_b_proj).view(x_TD.shape[0], num_heads, -1)
    return Projected(r_TQ, q_TAE, rms_norm(F.linear(x_TD, kv_a_proj), kv_a_norm, eps))


def attend_selected(
    q_TAE: Tensor,
    kv_b_proj: Tensor,
    latents_ZPL: Tensor,
    selected_TX: Tensor,
    positions_T: Tensor,
    block_table: Tensor,
    *,
    pool_size: int,
    row_tile: int,
) -> Tensor:
    """Attend to the selected pools and the open one, in latent space: [T, A*F].

    With `row_tile` > 1 the width is always that of the selection, so that sums run over the same
    terms at every context; else it shrinks to the pools the block table has.
    """
    _, num_heads, key_size = q_TAE.shape
    pools_a_page = latents_ZPL.shape[1] // pool_size
    if row_tile == 1:
        selected_TX = selected_TX[:, : block_table.shape[-1] * pools_a_page]
    pools_TN, mask_TX = selected_pools(selected_TX, positions_T, pool_size)
    up = kv_b_proj.view(num_heads, -1, kv_b_proj.shape[1])
    key_up_AEL, value_up_AFL = up[:, :key_size], up[:, key_size:]
    absorbed_ATL = torch.bmm(q_TAE.transpose(0, 1), key_up_AEL)
    latent_TAL = attend(
        absorbed_ATL.transpose(0, 1),
        pool_rows(latents_ZPL, pool_size),
        physical_pools(block_table, pools_TN, pools_a_page),
        mask_TX,
        scale=key_size**-0.5,
    )
    values_ATF = torch.bmm(latent_TAL.transpose(0, 1), value_up_AFL.transpose(1, 2))
    return values_ATF.transpose(0, 1).flatten(1)


def attend(
    q_TAL: Tensor,
    latent_rows: Tensor,
    physical_TN: Tensor,
    mask_TX: Tensor,
    *,
    scale: float,
) -> Tensor:
    """Softmax attention of each query over the tokens of its pools.

    Args:
        q_TAL: absorbed queries.
        latent_rows: latent cache, one row of P*L per pool; read in the dtype of the queries.
        physical_TN: rows each query reads; masked ones must be finite.
        mask_TX: which of the N*P tokens count; at least one a query.

    Returns:
        Attended latents [T, A, L].
    """
    tiles = []
    for first in range(0, q_TAL.shape[0], QUERY_TILE):
        tile = slice(first, first + QUERY_TILE)
        q = q_TAL[tile]
        latents = read_rows(latent_rows, physical_TN[tile], q.dtype)
        latents = latents.view(q.shape[0], -1, q.shape[2])
        scores = torch.bmm(q, latents.transpose(1, 2)).float() * scale
        scores = scores.masked_fill(~mask_TX[tile].unsqueeze(1), float("-inf"))
        tiles.append(torch.bmm(torch.softmax(scores, dim=-1).to(q.dtype), latents))
    return tiles[0] if len(tiles) == 1 else torch.cat(tiles)


def selected_pools(pools_TN: Tensor, positions_T: Tensor, pool_size: int) -> tuple[Tensor, Tensor]:
    """Add the open pool to a selection and mask what a query must not see.

    Args:
        pools_TN: selected complete pools, negative where absent.
        positions_T: position of each query.

    Returns:
        Logical pools [T, N+1]; absent ones repeat the query's own pool, which is finite.
        Mask [T, (N+1)*P]: tokens of present pools, and of the open pool those up to the query
        (none when the query completes its pool: then the pool competes on its score).
    """
    own_T1 = torch.div(positions_T, pool_size, rounding_mode="floor").unsqueeze(1)
    present = pools_TN >= 0
    pools = torch.cat((torch.where(present, pools_TN, own_T1), own_T1), dim=1)
    offset_T1 = (positions_T % pool_size).unsqueeze(1)
    member = torch.arange(pool_size, device=positions_T.device)
    tail = (member <= offset_T1) & (offset_T1 < pool_size - 1)
    return pools, torch.cat((present.repeat_interleave(pool_size, dim=1), tail), dim=1)
