"""Reference of the prefill `dsa_half`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.common.collectives import all_reduce
from trnrt_kernels.reference import indexer, mhc, mla
from trnrt_kernels.reference.elementwise import rms_norm
from trnrt_kernels.reference.paging import (
    ChunkFrame,
    all_pools,
    pool_rows,
    read_rows,
    write_rows,
)


def dsa_half_ref(
    streams_TND: Tensor,
    start: Tensor,
    num_tokens: Tensor,
    state_slot: Tensor,
    block_table_P: Tensor,
    attn_hc_fn: Tensor,
    attn_hc_base: Tensor,
    attn_hc_scale: Tensor,
    attn_norm: Tensor,
    q_a_proj: Tensor,
    q_a_norm: Tensor,
    q_b_proj: Tensor,
    kv_a_proj: Tensor,
    kv_a_norm: Tensor,
    kv_b_proj: Tensor,
    o_proj: Tensor,
    index_q_proj: Tensor,
    index_k_proj: Tensor,
    index_k_norm: Tensor,
    index_k_norm_bias: Tensor,
    index_weights_proj: Tensor,
    index_gate_proj: Tensor,
    index_ape: Tensor,
    latents: Tensor,
    pool_keys: Tensor,
    open_pool: Tensor,
    rms_norm_eps: float,
    hc_eps: float,
    hc_sinkhorn_iters: int,
    num_attention_heads: int,
    index_kpool: int,
    index_topk: int,
    row_tile: int,
    group_name: str,
) -> tuple[Tensor, Tensor]:
    """DSA attention half of a layer; mutates `latents`, `pool_keys` and `open_pool`.

    Returns:
        The streams, and the logical pools each query selected, ascending, -1 where absent.
    """
    half = mhc.collapse(
        streams_TND,
        attn_hc_fn,
        attn_hc_base,
        attn_hc_scale,
        rms_norm_eps=rms_norm_eps,
        hc_eps=hc_eps,
        hc_sinkhorn_iters=hc_sinkhorn_iters,
    )
    x_TD = rms_norm(half.hidden_TD, attn_norm, rms_norm_eps)
    projected = mla.project(
        x_TD,
        q_a_proj,
        q_a_norm,
        q_b_proj,
        kv_a_proj,
        kv_a_norm,
        num_heads=num_attention_heads,
        eps=rms_norm_eps,
    )
    rows = x_TD.shape[0]
    pools_a_page = latents.shape[1] // index_kpool
    frame = ChunkFrame(start, num_tokens, rows, index_kpool)
    frame_rows = frame.rows_to_write(block_table_P, pools_a_page)
    latent_rows = pool_rows(latents, index_kpool)
    kept = read_rows(latent_rows, frame_rows[:1], x_TD.dtype).view(index_kpool, -1)
    write_rows(latent_rows, frame_rows, frame.fill(kept, projected.latent_TL).flatten(1))
    positions_T = frame.positions()
    member_T2J = indexer.token_keys(
        x_TD, index_k_proj, index_k_norm, index_k_norm_bias, index_gate_proj
    )
    members = frame.fill(open_pool.index_select(0, state_slot).squeeze(0), member_T2J)
    open_pool.index_copy_(0, state_slot, frame.open_members(members).unsqueeze(0))
    key_rows = pool_keys.view(-1, pool_keys.shape[2])
    write_rows(key_rows, frame_rows, indexer.pool(members, index_ape))
    selected_TX = indexer.select_chunk(
        indexer.queries(x_TD, projected.r_TQ, index_q_proj, index_weights_proj),
        key_rows,
        all_pools(block_table_P, pools_a_page),
        torch.div(positions_T + 1, index_kpool, rounding_mode="floor"),
        index_topk // index_kpool,
    )
    attended = mla.attend_selected(
        projected.q_TAE,
        kv_b_proj,
        latents,
        selected_TX,
        positions_T,
        block_table_P,
        pool_size=index_kpool,
        row_tile=row_tile,
    )
    y_TD = F.linear(attended, o_proj)
    return mhc.mix(half, all_reduce(y_TD, group_name), streams_TND), selected_TX
