"""Reference of the decode `kda_half`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.reference import kda, mhc
from trnrt_kernels.reference.elementwise import cleared


def kda_half_ref(
    streams_BND: Tensor,
    positions_B: Tensor,
    state_slots_B: Tensor,
    attn_hc_fn: Tensor,
    attn_hc_base: Tensor,
    attn_hc_scale: Tensor,
    attn_norm: Tensor,
    qkv_proj: Tensor,
    qkv_conv: Tensor,
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

    A sequence at position 0 ignores what its slot holds.
    """
    constants = mhc.Constants(rms_norm_eps, hc_eps, hc_sinkhorn_iters)
    half_weights = mhc.HalfWeights(attn_hc_fn, attn_hc_base, attn_hc_scale, attn_norm)
    half = mhc.enter(streams_BND, half_weights, constants)
    x_BD = half.hidden_TD
    weights = kda.KdaWeights(
        *(qkv_proj, qkv_conv, f_a_proj, f_b_proj, dt_bias, a_log, b_proj),
        *(g_a_proj, g_b_proj, o_norm, o_proj),
    )
    is_first_B11 = (positions_B == 0).view(-1, 1, 1)
    tail = cleared(conv_tail.index_select(0, state_slots_B), is_first_B11)
    window_BWC = torch.cat((tail, F.linear(x_BD, qkv_proj).unsqueeze(1)), dim=1)
    conv_tail.index_copy_(0, state_slots_B, window_BWC[:, 1:])
    mixed_BC = kda.convolve_step(window_BWC, qkv_conv.t())
    gates = kda.gates(x_BD, mixed_BC, weights, linear_lower_bound)
    state = kda_state.index_select(0, state_slots_B)
    output_BHK, state = kda.step(gates, cleared(state, is_first_B11.unsqueeze(3)))
    kda_state.index_copy_(0, state_slots_B, state)
    y_BD = kda.finish(x_BD, output_BHK, weights, rms_norm_eps)
    return mhc.leave(half, y_BD, streams_BND, group_name)
