"""Reference of the prefill `dense_half`."""

from __future__ import annotations

from torch import Tensor

from trnrt_kernels.reference import experts, mhc


def dense_half_ref(
    streams_TND: Tensor,
    ffn_hc_fn: Tensor,
    ffn_hc_base: Tensor,
    ffn_hc_scale: Tensor,
    ffn_norm: Tensor,
    gate_up_proj: Tensor,
    down_proj: Tensor,
    rms_norm_eps: float,
    hc_eps: float,
    hc_sinkhorn_iters: int,
    swiglu_limit: float,
    group_name: str,
) -> Tensor:
    """Feed-forward half of a dense layer."""
    constants = mhc.Constants(rms_norm_eps, hc_eps, hc_sinkhorn_iters)
    half_weights = mhc.HalfWeights(ffn_hc_fn, ffn_hc_base, ffn_hc_scale, ffn_norm)
    half = mhc.enter(streams_TND, half_weights, constants)
    x_TD = half.hidden_TD
    y_TD = experts.dense(x_TD, gate_up_proj, down_proj, swiglu_limit)
    return mhc.leave(half, y_TD, streams_TND, group_name)
