"""Reference of the prefill `moe_half`."""

from __future__ import annotations

import torch
from torch import Tensor

from trnrt_kernels.reference import experts, mhc


def moe_half_ref(
    streams_TND: Tensor,
    num_tokens: Tensor,
    ffn_hc_fn: Tensor,
    ffn_hc_base: Tensor,
    ffn_hc_scale: Tensor,
    ffn_norm: Tensor,
    router: Tensor,
    router_bias: Tensor,
    experts_gate_up: Tensor,
    experts_down: Tensor,
    shared_gate_up_proj: Tensor,
    shared_down_proj: Tensor,
    rms_norm_eps: float,
    hc_eps: float,
    hc_sinkhorn_iters: int,
    swiglu_limit: float,
    num_experts_per_tok: int,
    n_group: int,
    topk_group: int,
    norm_topk_prob: bool,
    routed_scaling_factor: float,
    row_tile: int,
    group_name: str,
) -> Tensor:
    """Feed-forward half of a layer with routed experts and a shared one.

    Rows that are not live join no expert.
    """
    constants = mhc.Constants(rms_norm_eps, hc_eps, hc_sinkhorn_iters)
    half_weights = mhc.HalfWeights(ffn_hc_fn, ffn_hc_base, ffn_hc_scale, ffn_norm)
    half = mhc.enter(streams_TND, half_weights, constants)
    x_TD = half.hidden_TD
    is_live_T = torch.arange(x_TD.shape[0], device=x_TD.device) < num_tokens
    weights = experts.MoeWeights(
        *(router, router_bias, experts_gate_up, experts_down),
        *(shared_gate_up_proj, shared_down_proj),
    )
    rule = experts.RoutingRule(
        num_experts_per_tok, n_group, topk_group, norm_topk_prob, routed_scaling_factor
    )
    y_TD = experts.forward(
        x_TD, weights, rule, is_live_T, swiglu_limit=swiglu_limit, row_tile=row_tile
    )
    return mhc.leave(half, y_TD, streams_TND, group_name)
