"""DSA for training: MLA without positions, and an indexer that learns from its attention.

The indexer picks pools of four tokens. No gradient of the language loss reaches it, so it has its
own loss: the KL divergence from the dense attention mass of each pool, at sampled queries.
Shapes: B sequences, T tokens, P pools, Q sampled queries, H heads, K head size.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo_training.norm import RMSNorm
from demo_training.shape import ModelShape

SAMPLED_QUERIES = 96


def split_heads(x_BTD: Tensor, heads: int) -> Tensor:
    """[B, T, H * K] to [B, H, T, K]."""
    return x_BTD.view(*x_BTD.shape[:2], heads, -1).transpose(1, 2)


class Indexer(nn.Module):
    """Scores pools of tokens; parameter names are the checkpoint's."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        size = shape.index_head_dim
        self.wq_b = nn.Linear(shape.q_lora_rank, shape.index_heads * size, bias=False)
        self.wk = nn.Linear(shape.hidden_size, size, bias=False)
        self.k_norm = nn.LayerNorm(size, eps=1e-6)
        self.weights_proj = nn.Linear(shape.hidden_size, shape.index_heads, bias=False)
        self.index_kpool_compress_gate = nn.Parameter(torch.randn(size, shape.hidden_size) * 0.02)
        self.index_kpool_compress_ape = nn.Parameter(torch.zeros(shape.index_pool, size))

    def pool_keys(self, x_BTD: Tensor) -> Tensor:
        """Keys of the complete pools [B, P, K]."""
        pool = self.shape.index_pool
        x = x_BTD[:, : x_BTD.shape[1] // pool * pool]
        keys: Tensor = self.k_norm(self.wk(x))
        gates = F.linear(x, self.index_kpool_compress_gate)
        pooled = (x.shape[0], -1, pool, keys.shape[-1])
        share = torch.softmax(gates.view(pooled) + self.index_kpool_compress_ape, 2)
        return (share * keys.view(pooled)).sum(2)

    def scores(self, x_BQD: Tensor, latent_BQR: Tensor, keys_BPK: Tensor) -> Tensor:
        """Score of every pool for every query [B, Q, P]."""
        heads, size = self.shape.index_heads, self.shape.index_head_dim
        query: Tensor = split_heads(self.wq_b(latent_BQR), heads)
        match = F.relu(query @ keys_BPK.transpose(1, 2)[:, None] * size**-0.5)
        weights: Tensor = (self.weights_proj(x_BQD) * heads**-0.5).transpose(1, 2)
        return (match * weights[..., None]).sum(1)


def is_complete(positions_Q: Tensor, num_pools: int, pool: int) -> Tensor:
    """Which pools end at or before each position [Q, P]."""
    return torch.arange(num_pools) * pool + pool - 1 <= positions_Q[:, None]


def select_tokens(scores_BTP: Tensor, *, pool: int, topk: int, length: int) -> Tensor:
    """Which tokens each query may read [B, T, T]: its best pools and the open tail."""
    num_pools = scores_BTP.shape[-1]
    positions = torch.arange(length)
    complete = is_complete(positions, num_pools, pool)
    scores = scores_BTP.masked_fill(~complete, -torch.inf)
    # Ties go to the older pool, as when served; topk alone does not promise it.
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
    best = order[..., : topk // pool]
    chosen = torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True) & complete
    tokens = F.pad(chosen.repeat_interleave(pool, -1), (0, length - num_pools * pool))
    tail_start = (positions + 1) // pool * pool
    tail = (positions >= tail_start[:, None]) & (positions <= positions[:, None])
    return tokens | tail


class SparseAttention(nn.Module):
    """MLA; sub-module names are the checkpoint's."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        hidden, heads, size = shape.hidden_size, shape.mla_heads, shape.mla_head_dim
        self.q_a_proj = nn.Linear(hidden, shape.q_lora_rank, bias=False)
        self.q_a_layernorm = RMSNorm(shape.q_lora_rank, shape.norm_eps)
        self.q_b_proj = nn.Linear(shape.q_lora_rank, heads * size, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(hidden, shape.kv_lora_rank, bias=False)
        self.kv_a_layernorm = RMSNorm(shape.kv_lora_rank, shape.norm_eps)
        self.kv_b_proj = nn.Linear(shape.kv_lora_rank, heads * 2 * size, bias=False)
        self.o_proj = nn.Linear(heads * size, hidden, bias=False)
        self.indexer = Indexer(shape)

    @torch.no_grad()
    def start_as_copier(self) -> None:
        """Let the output start as the transpose of the value path: what is read is written back."""
        heads, size = self.shape.mla_heads, self.shape.mla_head_dim
        of_values = self.kv_b_proj.weight.view(heads, 2, size, -1)[:, 1].flatten(0, 1)
        self.o_proj.weight.copy_((of_values @ self.kv_a_proj_with_mqa.weight).T)

    def forward(self, x_BTD: Tensor, *, is_sparse: bool) -> tuple[Tensor, Tensor]:
        """Attend densely or over the indexer's choice; also return the indexer's loss."""
        shape = self.shape
        length = x_BTD.shape[1]
        latent = self.q_a_layernorm(self.q_a_proj(x_BTD))
        query = split_heads(self.q_b_proj(latent), shape.mla_heads)
        kv = self.kv_b_proj(self.kv_a_layernorm(self.kv_a_proj_with_mqa(x_BTD)))
        key, value = split_heads(kv, shape.mla_heads).chunk(2, -1)
        mask = None
        if is_sparse and length > shape.index_topk:
            with torch.no_grad():
                scores = self.indexer.scores(x_BTD, latent, self.indexer.pool_keys(x_BTD))
                mask = select_tokens(
                    scores, pool=shape.index_pool, topk=shape.index_topk, length=length
                )[:, None]
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None
        )
        loss = self._indexer_loss(x_BTD.detach(), latent.detach(), query.detach(), key.detach())
        return self.o_proj(out.transpose(1, 2).flatten(2)), loss

    def _indexer_loss(self, x: Tensor, latent: Tensor, query: Tensor, key: Tensor) -> Tensor:
        length, pool = x.shape[1], self.shape.index_pool
        if not self.training or length <= pool:
            return x.new_zeros(())
        positions = torch.randint(pool - 1, length, (min(SAMPLED_QUERIES, length),))
        with torch.no_grad():
            logits = query[:, :, positions] @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
            future = torch.arange(length) > positions[:, None]
            mass = torch.softmax(logits.masked_fill(future, -torch.inf), -1).mean(1)
            mass = mass[..., : length // pool * pool]
            mass = mass.view(*mass.shape[:2], -1, pool).sum(-1)
            complete = is_complete(positions, mass.shape[-1], pool)
            mass = mass * complete
            target = mass / (mass.sum(-1, keepdim=True) + 1e-9)
        scores = self.indexer.scores(
            x[:, positions], latent[:, positions], self.indexer.pool_keys(x)
        )
        predicted = torch.log_softmax(scores.masked_fill(~complete, -1e9), -1)
        return (torch.xlogy(target, target) - target * predicted).sum(-1).mean()
