"""Reference of the prefill `kda_half`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.reference import kda, mhc


def kda_half_ref(
    streams_TND: Tensor,
    start: Tensor,
    num_tokens: Tensor,
    state_slot: Tensor,
    export_rows_E: Tensor,
    export_slots_E: Tensor,
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

    A sequence at position 0 ignores what its slot holds. The state and the conv tail after
    `export_rows_E` rows, multiples of 64 that are live, also go to the slots `export_slots_E`: bit
    for bit what a chunk of so many tokens would have left.
    """
    constants = mhc.Constants(rms_norm_eps, hc_eps, hc_sinkhorn_iters)
    half_weights = mhc.HalfWeights(attn_hc_fn, attn_hc_base, attn_hc_scale, attn_norm)
    half = mhc.enter(streams_TND, half_weights, constants)
    x_TD = half.hidden_TD
    weights = kda.KdaWeights(
        *(qkv_proj, qkv_conv, f_a_proj, f_b_proj, dt_bias, a_log, b_proj),
        *(g_a_proj, g_b_proj, o_norm, o_proj),
    )
    row = torch.arange(x_TD.shape[0], device=x_TD.device)
    is_first = start == 0
    tail = torch.where(is_first, 0.0, conv_tail.index_select(0, state_slot).squeeze(0))
    window_XC = torch.cat((tail, F.linear(x_TD, qkv_proj)))
    has_exports = export_rows_E.shape[0] > 0
    ends = torch.cat((num_tokens, export_rows_E)) if has_exports else num_tokens
    slots = torch.cat((state_slot, export_slots_E)) if has_exports else state_slot
    last_taps = ends.unsqueeze(1) + torch.arange(tail.shape[0], device=x_TD.device)
    tails = window_XC.index_select(0, last_taps.flatten()).view(-1, *tail.shape)
    conv_tail.index_copy_(0, slots, tails)
    mixed_TC = kda.convolve(window_XC, qkv_conv.t(), row.shape[0])
    gates = kda.gates(x_TD, mixed_TC, weights, linear_lower_bound)
    state = torch.where(is_first, 0.0, kda_state.index_select(0, state_slot).squeeze(0))
    masked = kda.mask_absent(gates, row < num_tokens)
    advanced = kda.chunk(masked, state, keep_grid=has_exports)
    kda_state.index_copy_(0, slots, _states(advanced, export_rows_E))
    y_TD = kda.finish(x_TD, advanced.output_THK[: row.shape[0]], weights, rms_norm_eps)
    return mhc.leave(half, y_TD, streams_TND, group_name)


def _states(advanced: kda.Advanced, export_rows_E: Tensor) -> Tensor:
    """The state at the chunk's end, then those after the exported rows: [1 + E, H, K, K]."""
    state = advanced.state_HKK.unsqueeze(0)
    if not export_rows_E.shape[0]:
        return state
    on_grid = torch.stack(advanced.grid_states)
    return torch.cat((state, on_grid.index_select(0, export_rows_E // kda.EXPORT_GRID - 1)))
