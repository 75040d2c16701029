"""Reference of the decode `dsa_shared_half`."""

from __future__ import annotations

from torch import Tensor

from trnrt_kernels.reference import mhc, mla
from trnrt_kernels.reference.paging import BatchPages


def dsa_shared_half_ref(
    streams_BND: Tensor,
    selected_BX: Tensor,
    positions_B: Tensor,
    block_table_BP: Tensor,
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
    latents: Tensor,
    rms_norm_eps: float,
    hc_eps: float,
    hc_sinkhorn_iters: int,
    num_attention_heads: int,
    index_kpool: int,
    row_tile: int,
    group_name: str,
) -> Tensor:
    """DSA attention half that attends to what the layer before selected; mutates `latents`."""
    constants = mhc.Constants(rms_norm_eps, hc_eps, hc_sinkhorn_iters)
    half_weights = mhc.HalfWeights(attn_hc_fn, attn_hc_base, attn_hc_scale, attn_norm)
    half = mhc.enter(streams_BND, half_weights, constants)
    x_BD = half.hidden_TD
    weights = mla.MlaWeights(q_a_proj, q_a_norm, q_b_proj, kv_a_proj, kv_a_norm, kv_b_proj, o_proj)
    pages = BatchPages(
        positions_B, block_table_BP, page_size=latents.shape[1], pool_size=index_kpool
    )
    projected = mla.project(x_BD, weights, num_heads=num_attention_heads, eps=rms_norm_eps)
    pages.write_tokens(latents, projected.latent_TL)
    y_BD = mla.attend(projected.q_TAE, weights, latents, selected_BX, pages, row_tile=row_tile)
    return mhc.leave(half, y_BD, streams_BND, group_name)
