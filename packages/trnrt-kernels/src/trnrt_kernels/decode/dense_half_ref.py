"""Reference of the decode `dense_half`."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.common.collectives import all_reduce
from trnrt_kernels.reference import mhc
from trnrt_kernels.reference.elementwise import rms_norm, swiglu


def dense_half_ref(
    streams_BND: Tensor,
    ffn_hc_fn: Tensor,
    ffn_hc_base: Tensor,
    ffn_hc_scale: Tensor,
    ffn_norm: Tensor,
    gate_proj: Tensor,
    up_proj: Tensor,
    down_proj: Tensor,
    rms_norm_eps: float,
    hc_eps: float,
    hc_sinkhorn_iters: int,
    swiglu_limit: float,
    group_name: str,
) -> Tensor:
    """Feed-forward half of a dense layer."""
    half = mhc.collapse(
        streams_BND,
        ffn_hc_fn,
        ffn_hc_base,
        ffn_hc_scale,
        rms_norm_eps=rms_norm_eps,
        hc_eps=hc_eps,
        hc_sinkhorn_iters=hc_sinkhorn_iters,
    )
    x_BD = rms_norm(half.hidden_TD, ffn_norm, rms_norm_eps)
    hidden = swiglu(F.linear(x_BD, gate_proj), F.linear(x_BD, up_proj), swiglu_limit)
    y_BD = F.linear(hidden, down_proj)
    return mhc.mix(half, all_reduce(y_BD, group_name), streams_BND)
