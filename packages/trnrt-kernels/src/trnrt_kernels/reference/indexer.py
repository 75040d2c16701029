"""The k-pool indexer: which pools of tokens a query attends to.

T queries, I indexer heads, J head size, P tokens a pool, N pools. Pools count from the sequence's
first token; only complete ones are candidates. Scores and pooling are float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.common.score_budget import (
    CANDIDATE_BYTES,
    TILE_BYTES,
    rows_at_once,
    score_rows,
)
from trnrt_kernels.reference.elementwise import layer_norm
from trnrt_kernels.reference.paging import Pages, read_rows
from trnrt_kernels.reference.top_k import max_candidates, top_k_indices

NO_POOL = -1  # fills the selection of a query with fewer candidates than its width
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

    What exists at one time stays within `common.score_budget`, whatever the context is.

    Returns:
        Logical pools [T, num_selected] ascending, `NO_POOL` last.
    """
    tokens, table = query.q_TIJ.shape[0], pages.block_table
    rows = score_rows(tokens, num_pools=pages.num_pools)
    scores_RN = query.q_TIJ.new_empty(rows, pages.num_pools)
    selected = []
    for first in range(0, tokens, rows):
        tile = slice(first, first + rows)
        part = IndexQuery(query.q_TIJ[tile], query.weight_TI[tile])
        scores_TN = scores_RN[: part.q_TIJ.shape[0]]
        _score(part, pool_keys, table if table.dim() == 1 else table[tile], scores_TN)
        selected.append(_best(scores_TN, pages.num_complete[tile], num_selected))
    return torch.cat(selected)


def _score(
    query: IndexQuery, pool_keys_ZBJ: Tensor, block_table: Tensor, scores_TN: Tensor
) -> None:
    """Write the scores of all pools. The table is one sequence's [P] or each query's [T, P]."""
    tokens, heads, size = query.q_TIJ.shape
    pools_a_page, is_batch = pool_keys_ZBJ.shape[1], block_table.dim() == 2
    # Dot products, their sum, and keys as stored and as floats.
    floats_a_pool = tokens * (heads + 1) + 2 * size * (tokens if is_batch else 1)
    num_pages = max(1, TILE_BYTES // (4 * floats_a_pool * pools_a_page))
    page_rows = pool_keys_ZBJ.flatten(1)
    for first in range(0, block_table.shape[-1], num_pages):
        pages = block_table[..., first : first + num_pages]
        keys = read_rows(page_rows, pages, torch.float32)
        if is_batch:
            dots = torch.bmm(query.q_TIJ, keys.view(tokens, -1, size).transpose(1, 2))
        else:
            dots = F.linear(query.q_TIJ.flatten(0, 1), keys.view(-1, size))
            dots = dots.view(tokens, heads, -1)
        tile = slice(first * pools_a_page, (first + num_pages) * pools_a_page)
        scores_TN[:, tile] = dots.relu_().mul_(query.weight_TI.unsqueeze(2)).sum(dim=1)


def _best(scores_TN: Tensor, limit_T: Tensor, width: int) -> Tensor:
    """Top-k among the first `limit` pools of each row, ascending, padded to `width`."""
    tokens, num_pools = scores_TN.shape
    k = min(width, num_pools)
    row_bytes = CANDIDATE_BYTES * max_candidates(num_pools, k)
    rows = rows_at_once(tokens, row_bytes=row_bytes, budget_bytes=TILE_BYTES)
    tiles = zip(torch.split(scores_TN, rows), torch.split(limit_T, rows), strict=True)
    picked = torch.cat([top_k_indices(scores, k, limits=limits) for scores, limits in tiles])
    # Absent pools sort last under an id no pool has.
    picked = torch.where(picked < limit_T.unsqueeze(1), picked, num_pools)
    ascending = picked.sort(dim=1).values
    ascending = torch.where(ascending < num_pools, ascending, NO_POOL)
    return F.pad(ascending, (0, width - k), value=NO_POOL)
