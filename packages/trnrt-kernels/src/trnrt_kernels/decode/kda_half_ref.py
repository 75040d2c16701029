"""Reference of the decode `kda_half`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.common.collectives import all_reduce
from trnrt_kernels.reference import kda, mhc
from trnrt_kernels.reference.elementwise import rms_norm


def kda_half_ref(
    streams_BND: Tensor,
    positions_B: Tensor,
    state_slots_B: Tensor,
    attn_hc_fn: Tensor,
    attn_hc_base: Tensor,
    attn_hc_scale: Tensor,
    attn_norm: Tensor,
    q_proj: Tensor,
    k_proj: Tensor,
    v_proj: Tensor,
    q_conv: Tensor,
    k_conv: Tensor,
    v_conv: Tensor,
    f_a_proj: Tensor,
    f_b_proj: Tensor,
    dt_bias: Tensor,
    a_log: Tensor,
    b_proj: Tensor,
    g_a_proj: Tensor,
    g_b_proj: Tensor,
    o_norm: Tensor,
    o_proj: Tensor,
    conv_tail: Tensor,
    kda_state: Tensor,
    rms_norm_eps: float,
    hc_eps: float,
    hc_sinkhorn_iters: int,
    linear_lower_bound: float,
    group_name: str,
) -> Tensor:
    """KDA attention half of a layer; mutates `conv_tail` and `kda_state`.

    A sequence at position 0 ignores what its state slot holds.
    """
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
    taps_WC = torch.cat((q_conv.t(), k_conv.t(), v_conv.t()), dim=1)
    u_BC = torch.cat([F.linear(x_BD, proj) for proj in (q_proj, k_proj, v_proj)], dim=1)
    is_first_B11 = (positions_B == 0).view(-1, 1, 1)
    tail = torch.where(is_first_B11, 0.0, conv_tail.index_select(0, state_slots_B))
    window_BWC = torch.cat((tail, u_BC.unsqueeze(1)), dim=1)
    conv_tail.index_copy_(0, state_slots_B, window_BWC[:, 1:])
    mixed_BC = kda.convolve_step(window_BWC, taps_WC)
    gates = kda.gates(
        mixed_BC,
        F.linear(F.linear(x_BD, f_a_proj), f_b_proj),
        F.linear(x_BD, b_proj),
        dt_bias=dt_bias,
        a_log=a_log,
        lower_bound=linear_lower_bound,
    )
    state = kda_state.index_select(0, state_slots_B)
    state = torch.where(is_first_B11.unsqueeze(3), 0.0, state)
    output_BHK, state = kda.step(gates, state)
    kda_state.index_copy_(0, state_slots_B, state)
    gate_BC = F.linear(F.linear(x_BD, g_a_proj), g_b_proj)
    y_BD = F.linear(kda.gated_norm(output_BHK, gate_BC, o_norm, rms_norm_eps), o_proj)
    return mhc.mix(half, all_reduce(y_BD, group_name), streams_BND)
