"""Reference of the prefill `kda_half`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.common.collectives import all_reduce
from trnrt_kernels.reference import kda, mhc
from trnrt_kernels.reference.elementwise import rms_norm


def kda_half_ref(
    streams_TND: Tensor,
    start: Tensor,
    num_tokens: Tensor,
    state_slot: Tensor,
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
        streams_TND,
        attn_hc_fn,
        attn_hc_base,
        attn_hc_scale,
        rms_norm_eps=rms_norm_eps,
        hc_eps=hc_eps,
        hc_sinkhorn_iters=hc_sinkhorn_iters,
    )
    x_TD = rms_norm(half.hidden_TD, attn_norm, rms_norm_eps)
    taps_WC = torch.cat((q_conv.t(), k_conv.t(), v_conv.t()), dim=1)
    u_TC = torch.cat([F.linear(x_TD, proj) for proj in (q_proj, k_proj, v_proj)], dim=1)
    rows, taps = x_TD.shape[0], taps_WC.shape[0]
    is_first = start == 0
    tail = torch.where(is_first, 0.0, conv_tail.index_select(0, state_slot).squeeze(0))
    window_XC = torch.cat((tail, u_TC))
    last_taps = num_tokens + torch.arange(taps - 1, device=x_TD.device)
    conv_tail.index_copy_(0, state_slot, window_XC.index_select(0, last_taps).unsqueeze(0))
    mixed_TC = kda.convolve(window_XC, taps_WC, rows)
    gates = kda.gates(
        mixed_TC,
        F.linear(F.linear(x_TD, f_a_proj), f_b_proj),
        F.linear(x_TD, b_proj),
        dt_bias=dt_bias,
        a_log=a_log,
        lower_bound=linear_lower_bound,
    )
    is_live_T = torch.arange(rows, device=x_TD.device) < num_tokens
    state = torch.where(is_first, 0.0, kda_state.index_select(0, state_slot).squeeze(0))
    output_THK, state = kda.chunk(kda.mask_absent(gates, is_live_T), state)
    kda_state.index_copy_(0, state_slot, state.unsqueeze(0))
    gate_TC = F.linear(F.linear(x_TD, g_a_proj), g_b_proj)
    y_TD = F.linear(kda.gated_norm(output_THK[:rows], gate_TC, o_norm, rms_norm_eps), o_proj)
    return mhc.mix(half, all_reduce(y_TD, group_name), streams_TND)
