"""The k-pool indexer: which pools of tokens a query attends to.

T queries, I indexer heads, J head size, P tokens a pool, N pools. Pools count from the sequence's
first token; only complete ones are candidates. Scores and pooling are float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.reference.elementwise import layer_norm
from trnrt_kernels.reference.paging import read_rows
from trnrt_kernels.reference.top_k import top_k_indices

NO_POOL = -1  # fills the selection of a query with fewer candidates than its width
SCORE_BUDGET_BYTES = 8 << 20
_K_NORM_EPS = 1e-6


class IndexQuery(NamedTuple):
    """Scores are `sum_h weight[h] * relu(q[h] . key)`; all constants are in the weights."""

    q_TIJ: Tensor
    weight_TI: Tensor


def token_keys(
    x_TD: Tensor, k_proj: Tensor, k_norm: Tensor, k_norm_bias: Tensor, gate_proj: Tensor
) -> Tensor:
    """Key and pooling logits of each token: [T, 2, J], activation dtype."""
    key_TJ = layer_norm(F.linear(x_TD, k_proj), k_norm, k_norm_bias, _K_NORM_EPS)
    return torch.stack((key_TJ, F.linear(x_TD, gate_proj)), dim=1)


def pool(members_NP2J: Tensor, ape_PJ: Tensor) -> Tensor:
    """Pool the keys of P tokens, one softmax per channel: [N, J] float32."""
    wide = members_NP2J.float()
    share = torch.softmax(wide[:, :, 1] + ape_PJ, dim=1)
    return (share * wide[:, :, 0]).sum(dim=1)


def queries(x_TD: Tensor, r_TQ: Tensor, q_proj: Tensor, weights_proj: Tensor) -> IndexQuery:
    """Project the queries and their signed head weights; the weights stay in float32."""
    tokens, heads = x_TD.shape[0], weights_proj.shape[0]
    q_TIJ = F.linear(r_TQ, q_proj).view(tokens, heads, -1).float()
    scale = (heads * q_TIJ.shape[2]) ** -0.5
    return IndexQuery(q_TIJ, F.linear(x_TD.float(), weights_proj) * scale)


def select_step(
    query: IndexQuery, pool_keys_RJ: Tensor, physical_BN: Tensor, limit_B: Tensor, width: int
) -> Tensor:
    """Select pools for one token of each row.

    Args:
        pool_keys_RJ: pooled keys, one row per physical pool.
        physical_BN: rows of each sequence's pools, in order.
        limit_B: complete pools of each sequence.
        width: pools to return.

    Returns:
        Logical pools [B, width] ascending, `NO_POOL` last.
    """
    rows, num_pools = physical_BN.shape
    size = pool_keys_RJ.shape[1]
    tile = _pools_a_tile(rows * (size + query.q_TIJ.shape[1]))
    tiles = []
    for tile_BN in torch.split(physical_BN, tile, dim=1):
        keys = read_rows(pool_keys_RJ, tile_BN, torch.float32).view(rows, -1, size)
        dots = torch.relu(torch.bmm(query.q_TIJ, keys.transpose(1, 2)))
        tiles.append((dots * query.weight_TI.unsqueeze(2)).sum(dim=1))
    return _select(torch.cat(tiles, dim=1), limit_B, min(width, num_pools), width)


def select_chunk(
    query: IndexQuery, pool_keys_RJ: Tensor, physical_N: Tensor, limit_T: Tensor, width: int
) -> Tensor:
    """Select pools for T tokens of one sequence; as `select_step`, with one list of pools."""
    tokens, heads, size = query.q_TIJ.shape
    num_pools = physical_N.shape[0]
    rows = max(1, min(tokens, SCORE_BUDGET_BYTES // (8 * num_pools)))
    selected = []
    for first in range(0, tokens, rows):
        q = query.q_TIJ[first : first + rows]
        weight = query.weight_TI[first : first + rows].unsqueeze(2)
        tiles = []
        for tile_N in torch.split(physical_N, _pools_a_tile(q.shape[0] * heads + size)):
            keys = read_rows(pool_keys_RJ, tile_N, torch.float32)
            dots = torch.relu(F.linear(q.flatten(0, 1), keys)).view(-1, heads, keys.shape[0])
            tiles.append((dots * weight).sum(dim=1))
        limit = limit_T[first : first + rows]
        selected.append(_select(torch.cat(tiles, dim=1), limit, min(width, num_pools), width))
    return torch.cat(selected)


def _select(scores_TN: Tensor, limit_T: Tensor, k: int, width: int) -> Tensor:
    """Top-k among the first `limit` pools of each row, ascending, padded to `width`."""
    num_pools = scores_TN.shape[1]
    candidate = torch.arange(num_pools, device=scores_TN.device) < limit_T.unsqueeze(1)
    picked = top_k_indices(scores_TN.masked_fill(~candidate, float("-inf")), k)
    # Absent pools sort last under an id no pool has.
    picked = torch.where(picked < limit_T.unsqueeze(1), picked, num_pools)
    ascending = picked.sort(dim=1).values
    ascending = torch.where(ascending < num_pools, ascending, NO_POOL)
    return F.pad(ascending, (0, width - k), value=NO_POOL)


def _pools_a_tile(floats_a_pool: int) -> int:
    return max(64, SCORE_BUDGET_BYTES // (4 * floats_a_pool))
