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
from trnrt_kernels.reference.paging import Pages, read_rows
from trnrt_kernels.reference.top_k import top_k_indices

NO_POOL = -1  # fills the selection of a query with fewer candidates than its width
SCORE_BUDGET_BYTES = 8 << 20
_K_NORM_EPS = 1e-6


class IndexerWeights(NamedTuple):
    """Weights of an indexer, in the order of the ops' arguments."""

    q_proj: Tensor
    k_proj: Tensor
    k_norm: Tensor
    k_norm_bias: Tensor
    weights_proj: Tensor
    gate_proj: Tensor
    ape_PJ: Tensor


class IndexQuery(NamedTuple):
    """Scores are `sum_h weight[h] * relu(q[h] . key)`; all constants are in the weights."""

    q_TIJ: Tensor
    weight_TI: Tensor


def token_keys(x_TD: Tensor, weights: IndexerWeights) -> Tensor:
    """Key and pooling logits of each token: [T, 2, J], activation dtype."""
    key_TJ = F.linear(x_TD, weights.k_proj)
    key_TJ = layer_norm(key_TJ, weights.k_norm, weights.k_norm_bias, _K_NORM_EPS)
    return torch.stack((key_TJ, F.linear(x_TD, weights.gate_proj)), dim=1)


def pool(members_NP2J: Tensor, ape_PJ: Tensor) -> Tensor:
    """Pool the keys of P tokens, one softmax per channel: [N, J] float32."""
    wide = members_NP2J.float()
    share = torch.softmax(wide[:, :, 1] + ape_PJ, dim=1)
    return (share * wide[:, :, 0]).sum(dim=1)


def queries(x_TD: Tensor, r_TQ: Tensor, weights: IndexerWeights) -> IndexQuery:
    """Project the queries and their signed head weights; the weights stay in float32."""
    tokens, heads = x_TD.shape[0], weights.weights_proj.shape[0]
    q_TIJ = F.linear(r_TQ, weights.q_proj).view(tokens, heads, -1).float()
    scale = (heads * q_TIJ.shape[2]) ** -0.5
    return IndexQuery(q_TIJ, F.linear(x_TD.float(), weights.weights_proj) * scale)


def append_keys(
    x_TD: Tensor,
    weights: IndexerWeights,
    pages: Pages,
    pool_keys: Tensor,
    open_pool: Tensor,
    slots: Tensor,
) -> None:
    """Add the tokens' keys to the caches: pooled where a pool is full, else to the open pool."""
    members = pages.extend_open_pool(open_pool, slots, token_keys(x_TD, weights))
    pages.write_pools(pool_keys, pool(members, weights.ape_PJ))


def select(query: IndexQuery, pool_keys: Tensor, pages: Pages, *, num_selected: int) -> Tensor:
    """Select pools for each query; ties go to the lower pool.

    The rows of scores that exist at one time, and what they are computed from, stay within
    `SCORE_BUDGET_BYTES`, whatever the context is.

    Returns:
        Logical pools [T, num_selected] ascending, `NO_POOL` last.
    """
    key_rows = pool_keys.view(-1, pool_keys.shape[2])
    all_pools = pages.all_pools()
    tokens = query.q_TIJ.shape[0]
    rows = max(1, min(tokens, SCORE_BUDGET_BYTES // (8 * pages.num_pools)))
    selected = []
    for first in range(0, tokens, rows):
        tile = slice(first, first + rows)
        part = IndexQuery(query.q_TIJ[tile], query.weight_TI[tile])
        scores_TN = _score(part, key_rows, all_pools if all_pools.dim() == 1 else all_pools[tile])
        selected.append(_best(scores_TN, pages.num_complete[tile], num_selected))
    return torch.cat(selected)


def _score(query: IndexQuery, key_rows: Tensor, pools: Tensor) -> Tensor:
    """Scores of all pools: [T, N]. `pools` are rows of one sequence [N] or of each query [T, N]."""
    tokens, heads, size = query.q_TIJ.shape
    is_batch = pools.dim() == 2
    floats_a_pool = tokens * (heads + size if is_batch else heads) + size
    tiles = []
    for tile in torch.split(pools, max(64, SCORE_BUDGET_BYTES // (4 * floats_a_pool)), dim=-1):
        keys = read_rows(key_rows, tile, torch.float32)
        if is_batch:
            dots = torch.bmm(query.q_TIJ, keys.view(tokens, -1, size).transpose(1, 2))
        else:
            dots = F.linear(query.q_TIJ.flatten(0, 1), keys).view(tokens, heads, -1)
        tiles.append((torch.relu(dots) * query.weight_TI.unsqueeze(2)).sum(dim=1))
    return torch.cat(tiles, dim=1)


def _best(scores_TN: Tensor, limit_T: Tensor, width: int) -> Tensor:
    """Top-k among the first `limit` pools of each row, ascending, padded to `width`."""
    num_pools = scores_TN.shape[1]
    candidate = torch.arange(num_pools, device=scores_TN.device) < limit_T.unsqueeze(1)
    scores_TN = torch.where(candidate, scores_TN, float("-inf"))
    picked = top_k_indices(scores_TN, min(width, num_pools))
    # Absent pools sort last under an id no pool has.
    picked = torch.where(picked < limit_T.unsqueeze(1), picked, num_pools)
    ascending = picked.sort(dim=1).values
    ascending = torch.where(ascending < num_pools, ascending, NO_POOL)
    return F.pad(ascending, (0, width - ascending.shape[1]), value=NO_POOL)
