"""Reference of the prefill `dsa_half`."""

from __future__ import annotations

from torch import Tensor

from trnrt_kernels.reference import indexer, mhc, mla
from trnrt_kernels.reference.paging import ChunkPages


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
    constants = mhc.Constants(rms_norm_eps, hc_eps, hc_sinkhorn_iters)
    half_weights = mhc.HalfWeights(attn_hc_fn, attn_hc_base, attn_hc_scale, attn_norm)
    half = mhc.enter(streams_TND, half_weights, constants)
    x_TD = half.hidden_TD
    weights = mla.MlaWeights(q_a_proj, q_a_norm, q_b_proj, kv_a_proj, kv_a_norm, kv_b_proj, o_proj)
    index_weights = indexer.IndexerWeights(
        *(index_q_proj, index_k_proj, index_k_norm, index_k_norm_bias, index_weights_proj),
        *(index_gate_proj, index_ape),
    )
    pages = ChunkPages(
        start,
        num_tokens,
        block_table_P,
        num_rows=x_TD.shape[0],
        page_size=latents.shape[1],
        pool_size=index_kpool,
    )
    projected = mla.project(x_TD, weights, num_heads=num_attention_heads, eps=rms_norm_eps)
    pages.write_tokens(latents, projected.latent_TL)
    indexer.append_keys(x_TD, index_weights, pages, pool_keys, open_pool, state_slot)
    query = indexer.queries(x_TD, projected.r_TQ, index_weights)
    selected_TX = indexer.select(query, pool_keys, pages, num_selected=index_topk // index_kpool)
    y_TD = mla.attend(projected.q_TAE, weights, latents, selected_TX, pages, row_tile=row_tile)
    return mhc.leave(half, y_TD, streams_TND, group_name), selected_TX
