"""Kimi delta attention: short convolution, decay gates, and the recurrence in both its forms.

T tokens (or batch rows), H heads, K key = value head size, C channels (H*K), W taps, Q tokens of a
sub-chunk. Per head, state S [K, K] float32:
`S <- diag(exp(g)) S; S <- S + k (beta (v - S^T k))^T; o = S^T q`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.reference.elementwise import rms_norm, sigmoid

SUB_CHUNK = 16  # exp(5 * 16) fits float32, exp(5 * 18) does not; the decay is at least -5 a token
EXPORT_GRID = 64  # rows of a chunk between two states that can be exported
_L2_EPS = 1e-6


class KdaWeights(NamedTuple):
    """Weights of a KDA block, in the order of the ops' arguments."""

    qkv_proj: Tensor
    qkv_conv: Tensor
    f_a_proj: Tensor
    f_b_proj: Tensor
    dt_bias: Tensor
    a_log: Tensor
    b_proj: Tensor
    g_a_proj: Tensor
    g_b_proj: Tensor
    o_norm: Tensor
    o_proj: Tensor


class Gates(NamedTuple):
    """Float32 inputs of the recurrence; q and k are normalised, q carries 1/sqrt(K)."""

    q_THK: Tensor
    k_THK: Tensor
    v_THK: Tensor
    g_THK: Tensor
    beta_TH: Tensor


class Advanced(NamedTuple):
    """A sequence advanced by a chunk.

    Fields:
        output_THK: o of each token, float32.
        state_HKK: after the last token.
        grid_states: after each `EXPORT_GRID` tokens; empty unless asked for.
    """

    output_THK: Tensor
    state_HKK: Tensor
    grid_states: list[Tensor]


def convolve(window_XC: Tensor, taps_WC: Tensor, tokens: int) -> Tensor:
    """Causal depthwise convolution and SiLU of `tokens` rows behind W-1 rows of history.

    Accumulates in float32 and rounds to the dtype of the window.
    """
    total = window_XC[:tokens].float() * taps_WC[0]
    for tap in range(1, taps_WC.shape[0]):
        total = total + window_XC[tap : tap + tokens].float() * taps_WC[tap]
    return F.silu(total).to(window_XC.dtype)


def convolve_step(window_BWC: Tensor, taps_WC: Tensor) -> Tensor:
    """The same for one token of each row, its history in front of it."""
    return F.silu((window_BWC.float() * taps_WC).sum(dim=1)).to(window_BWC.dtype)


def gates(x_TD: Tensor, mixed_TC: Tensor, weights: KdaWeights, lower_bound: float) -> Gates:
    """Project decay and beta, and split convolved q|k|v, into the recurrence's inputs."""
    decay_TC = F.linear(F.linear(x_TD, weights.f_a_proj), weights.f_b_proj)
    beta_TH = F.linear(x_TD, weights.b_proj)
    tokens, heads = beta_TH.shape
    mixed_T3HK = mixed_TC.view(tokens, 3, heads, -1).float()
    size = mixed_T3HK.shape[3]
    decay_THK = (decay_TC.float() + weights.dt_bias).view(tokens, heads, size)
    g_THK = lower_bound * sigmoid(torch.exp(weights.a_log).unsqueeze(1) * decay_THK)
    q_THK, k_THK = _l2_normalise(mixed_T3HK[:, :2]).unbind(1)
    return Gates(q_THK * size**-0.5, k_THK, mixed_T3HK[:, 2], g_THK, sigmoid(beta_TH.float()))


def mask_absent(gates: Gates, is_live_T: Tensor) -> Gates:
    """Zero every input of absent tokens and pad to whole sub-chunks with more of them."""
    missing = -is_live_T.shape[0] % SUB_CHUNK
    masked = (
        torch.where(is_live_T.view(-1, *(1,) * (part.dim() - 1)), part, 0.0) for part in gates
    )
    if missing == 0:
        return Gates(*masked)
    return Gates(*(F.pad(part, (*(0, 0) * (part.dim() - 1), 0, missing)) for part in masked))


def step(gates: Gates, state_BHKK: Tensor) -> tuple[Tensor, Tensor]:
    """Advance one token per row.

    Returns:
        o [B, H, K] float32 and the new state.
    """
    q, k, v, g, beta = gates
    rows, heads, size = k.shape
    decayed = (state_BHKK * torch.exp(g).unsqueeze(3)).view(rows * heads, size, size)
    key = k.reshape(rows * heads, 1, size)
    read = torch.bmm(key, decayed)
    delta = beta.reshape(rows * heads, 1, 1) * (v.reshape(rows * heads, 1, size) - read)
    state = torch.baddbmm(decayed, key.transpose(1, 2), delta)
    output = torch.bmm(q.reshape(rows * heads, 1, size), state)
    return output.view(rows, heads, size), state.view(rows, heads, size, size)


def chunk(gates: Gates, state_HKK: Tensor, *, keep_grid: bool) -> Advanced:
    """Advance one sequence by T tokens, T a multiple of `SUB_CHUNK`.

    Inside a sub-chunk the decay between two tokens factors into `exp(G_i) * exp(-G_j)`, so all
    pairs are matrix products, and `(I + L)^-1` of the nilpotent L is a product of four factors.
    Absent tokens must have g = beta = 0 and k = 0.

    Args:
        keep_grid: whether to return the states on the way, too.
    """
    q, k, v, g, beta = (_by_sub_chunk(part) for part in (*gates[:4], gates.beta_TH.unsqueeze(2)))
    total = g.cumsum(dim=2)
    grown, shrunk = torch.exp(total), torch.exp(-total)
    key_in, key_out, query = k * grown, k * shrunk, q * grown
    later = key_out.transpose(2, 3)
    inverse = _unit_lower_inverse(((key_in * beta) @ later).tril(-1))
    values = inverse @ (v * beta)
    weights = inverse @ (key_in * beta)
    attention = (query @ later).tril()
    last = total[:, :, -1:]
    key_end = (k * torch.exp(last - total)).transpose(2, 3)
    decay_end = torch.exp(last).transpose(2, 3)
    outputs: list[Tensor] = []
    grid_states: list[Tensor] = []
    state = state_HKK
    sub_chunks = (query, weights, values, attention, key_end, decay_end)
    for q_i, w_i, u_i, a_i, k_i, d_i in zip(*(x.unbind(1) for x in sub_chunks), strict=True):
        fresh = torch.baddbmm(u_i, w_i, state, alpha=-1)
        outputs.append(torch.baddbmm(torch.bmm(q_i, state), a_i, fresh))
        state = torch.baddbmm(state * d_i, k_i, fresh)
        if keep_grid and len(outputs) * SUB_CHUNK % EXPORT_GRID == 0:
            grid_states.append(state)
    heads, _, size = outputs[0].shape
    output = torch.stack(outputs, dim=1).view(heads, -1, size)
    return Advanced(output.transpose(0, 1), state, grid_states)


def finish(x_TD: Tensor, output_THK: Tensor, weights: KdaWeights, eps: float) -> Tensor:
    """Normalise each head in float32, gate it, round, and project: [T, D]."""
    gate_TC = F.linear(F.linear(x_TD, weights.g_a_proj), weights.g_b_proj)
    normed_TC = rms_norm(output_THK, weights.o_norm.float(), eps).flatten(1)
    return F.linear((normed_TC * sigmoid(gate_TC.float())).to(x_TD.dtype), weights.o_proj)


def _l2_normalise(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(dim=-1, keepdim=True) + _L2_EPS)


def _by_sub_chunk(x_THX: Tensor) -> Tensor:
    """[T, H, X] -> [H, T/Q, Q, X], contiguous."""
    tokens, heads, _ = x_THX.shape
    return x_THX.transpose(0, 1).reshape(heads, tokens // SUB_CHUNK, SUB_CHUNK, -1)


def _unit_lower_inverse(lower: Tensor) -> Tensor:
    """(I + L)^-1 of strictly lower L: (I - L)(I + L^2)(I + L^4)(I + L^8), exact as L^16 = 0."""
    inverse = torch.eye(SUB_CHUNK, device=lower.device) - lower
    power = lower
    for _ in range(3):
        power = power @ power
        inverse = inverse + inverse @ power
    return inverse
