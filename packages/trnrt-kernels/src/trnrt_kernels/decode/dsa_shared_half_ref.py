"""Reference of the decode `dsa_shared_half`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.common.collectives import all_reduce
from trnrt_kernels.reference import mhc, mla
from trnrt_kernels.reference.elementwise import rms_norm
from trnrt_kernels.reference.paging import (
    physical_pools,
    place_token,
    pool_rows,
    read_rows,
    write_rows,
)


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
    """DSA attention half that reuses the selection of the layer before; mutates `latents`."""
    half = mhc.collapse(
        streams_BND,
        attn_hc_fn,
        attn_hc_base,
        attn_hc_scale,
        rms_norm_eps=rms_norm_eps,
        hc_eps=hc_eps,
        hc_sinkhorn_iters=hc_sinkhorn_iters,
    )
    x_BD = rms_norm(half.hidden_TD, attn_norm, rms_norm_eps)
    projected = mla.project(
        x_BD,
        q_a_proj,
        q_a_norm,
        q_b_proj,
        kv_a_proj,
        kv_a_norm,
        num_heads=num_attention_heads,
        eps=rms_norm_eps,
    )
    pools_a_page = latents.shape[1] // index_kpool
    own_B1 = torch.div(positions_B, index_kpool, rounding_mode="floor").unsqueeze(1)
    own_row_B = physical_pools(block_table_BP, own_B1, pools_a_page).squeeze(1)
    offset_B = positions_B % index_kpool
    latent_rows = pool_rows(latents, index_kpool)
    kept = read_rows(latent_rows, own_row_B, x_BD.dtype).view(*own_row_B.shape, index_kpool, -1)
    placed = place_token(kept, projected.latent_TL, offset_B)
    write_rows(latent_rows, own_row_B, placed.flatten(1))
    attended = mla.attend_selected(
        projected.q_TAE,
        kv_b_proj,
        latents,
        selected_BX,
        positions_B,
        block_table_BP,
        pool_size=index_kpool,
        row_tile=row_tile,
    )
    y_BD = F.linear(attended, o_proj)
    return mhc.mix(half, all_reduce(y_BD, group_name), streams_BND)
