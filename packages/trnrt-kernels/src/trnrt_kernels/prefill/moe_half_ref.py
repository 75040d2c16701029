"""Reference of the prefill `moe_half`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.common.collectives import all_reduce
from trnrt_kernels.reference import experts, mhc
from trnrt_kernels.reference.elementwise import rms_norm, swiglu


def moe_half_ref(
    streams_TND: Tensor,
    num_tokens: Tensor,
    ffn_hc_fn: Tensor,
    ffn_hc_base: Tensor,
    ffn_hc_scale: Tensor,
    ffn_norm: Tensor,
    router: Tensor,
    router_bias: Tensor,
    experts_gate: Tensor,
    experts_up: Tensor,
    experts_down: Tensor,
    shared_gate_proj: Tensor,
    shared_up_proj: Tensor,
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

    Rows behind `num_tokens` join no expert.
    """
    half = mhc.collapse(
        streams_TND,
        ffn_hc_fn,
        ffn_hc_base,
        ffn_hc_scale,
        rms_norm_eps=rms_norm_eps,
        hc_eps=hc_eps,
        hc_sinkhorn_iters=hc_sinkhorn_iters,
    )
    x_TD = rms_norm(half.hidden_TD, ffn_norm, rms_norm_eps)
    is_live_T = torch.arange(x_TD.shape[0], device=x_TD.device) < num_tokens
    routing = experts.route(
        x_TD,
        router,
        router_bias,
        num_experts_per_tok=num_experts_per_tok,
        n_group=n_group,
        topk_group=topk_group,
        norm_topk_prob=norm_topk_prob,
        routed_scaling_factor=routed_scaling_factor,
    )
    layout = experts.lay_out(routing.experts_TK, is_live_T, router.shape[0], row_tile)
    routed_TD = experts.run(
        x_TD, routing, layout, experts_gate, experts_up, experts_down, swiglu_limit
    )
    shared = swiglu(F.linear(x_TD, shared_gate_proj), F.linear(x_TD, shared_up_proj), swiglu_limit)
    y_TD = routed_TD + F.linear(shared, shared_down_proj)
    return mhc.mix(half, all_reduce(y_TD, group_name), streams_TND)
