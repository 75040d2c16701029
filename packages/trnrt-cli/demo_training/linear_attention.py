"""KDA for training: the recurrence over chunks of 16 tokens, all inside products as matrices.

The decay of one token is bounded below by exp(-5), so the log decay of 16 tokens stays within
[-80, 0] and splits into two float32 factors, exp(G_i) and exp(-G_j), without overflow.
Shapes: B sequences, T tokens, H heads, K head size, C chunk, M chunks.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo_training.norm import RMSNorm
from demo_training.shape import ModelShape

CHUNK = 16


class _CausalConv(torch.autograd.Function):
    """Depthwise causal convolution as shifted products, accumulated in place both ways."""

    @staticmethod
    def forward(ctx: Any, u_BTD: Tensor, taps_DC: Tensor) -> Tensor:
        ctx.save_for_backward(u_BTD, taps_DC)
        kernel = taps_DC.shape[1]
        out = u_BTD * taps_DC[:, -1]
        for lag in range(1, kernel):
            out[:, lag:].addcmul_(u_BTD[:, :-lag], taps_DC[:, -1 - lag])
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        u, taps = ctx.saved_tensors
        (grad,) = grads
        grad_u = grad * taps[:, -1]
        grad_taps = [(grad * u).sum((0, 1))]
        for lag in range(1, taps.shape[1]):
            grad_u[:, :-lag].addcmul_(grad[:, lag:], taps[:, -1 - lag])
            grad_taps.append((grad[:, lag:] * u[:, :-lag]).sum((0, 1)))
        return grad_u, torch.stack(grad_taps[::-1], 1)


def causal_conv(u_BTD: Tensor, taps_DC: Tensor) -> Tensor:
    out: Tensor = _CausalConv.apply(u_BTD, taps_DC)  # type: ignore[no-untyped-call]
    return out


def chunk_factors(
    qkv_BTD: Tensor, gate_BTD: Tensor, beta_BTH: Tensor, heads: int
) -> tuple[Tensor, ...]:
    """Split into heads and chunks; scale queries and keys by their decays.

    Returns:
        v, queries by exp(G), keys by exp(G), keys by exp(-G), keys by exp(G_end - G),
        each [B, H, M, C, K]; beta [B, H, M, C, 1]; end decay [B, H, M, K, 1].
    """
    batch, length, width = gate_BTD.shape
    size = width // heads

    def chunked(x: Tensor) -> Tensor:
        x = x.view(batch, length // CHUNK, CHUNK, heads, -1)
        return x.permute(0, 3, 1, 2, 4).contiguous()

    q, k, v, gate = (chunked(x) for x in (*qkv_BTD.chunk(3, -1), gate_BTD))
    beta = chunked(beta_BTH)
    q = q * torch.rsqrt(q.square().sum(-1, keepdim=True) + 1e-6) * size**-0.5
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
    total = gate.cumsum(-2)
    end = total[..., -1:, :]
    grow = total.exp()
    end_decay = end.exp().transpose(-1, -2)
    return v, q * grow, k * grow, k * (-total).exp(), k * (end - total).exp(), beta, end_decay


def delta_rule(
    v: Tensor, q_grow: Tensor, k_grow: Tensor, k_shrink: Tensor, k_end: Tensor, beta: Tensor,
    end_decay: Tensor,
) -> Tensor:  # fmt: skip
    """Run the gated delta rule from a zero state; all arguments from `chunk_factors`."""
    batch, heads, chunks, _, size = v.shape
    shrink = k_shrink.transpose(-1, -2)
    below = (k_grow * beta) @ shrink
    inside = (q_grow @ shrink).tril()
    # (I + L)^-1 of a strictly lower L: L^16 = 0, so four factors are exact.
    power = -below.tril(-1)
    inverse = torch.eye(CHUNK) + power
    for _ in range(3):
        power = power @ power
        inverse = inverse + inverse @ power
    new_v = inverse @ (v * beta)
    reads = inverse @ (k_grow * beta)
    state = v.new_zeros(batch * heads, size, size)
    outputs = []

    def steps(x: Tensor) -> tuple[Tensor, ...]:
        return x.flatten(0, 1).unbind(1)

    for value, read, query, attend, key, decay in zip(
        steps(new_v), steps(reads), steps(q_grow), steps(inside),
        steps(k_end.transpose(-1, -2)), steps(end_decay), strict=True,
    ):  # fmt: skip
        value = torch.baddbmm(value, read, state, alpha=-1.0)  # noqa: PLW2901
        outputs.append(torch.baddbmm(attend @ value, query, state))
        state = torch.baddbmm(state * decay, key, value)
    return torch.stack(outputs, 1).view(batch, heads, chunks * CHUNK, size)


def log_decay(raw_BTD: Tensor, bias_D: Tensor, log_rate_H: Tensor, floor: float) -> Tensor:
    rate_D = log_rate_H.exp().repeat_interleave(len(bias_D) // len(log_rate_H))
    return floor * torch.sigmoid(rate_D * (raw_BTD + bias_D))


class LinearAttention(nn.Module):
    """KDA; sub-module and parameter names are the checkpoint's."""

    q_conv1d: nn.Conv1d
    k_conv1d: nn.Conv1d
    v_conv1d: nn.Conv1d

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        hidden, size = shape.hidden_size, shape.kda_head_dim
        width = shape.kda_heads * size
        self.q_proj = nn.Linear(hidden, width, bias=False)
        self.k_proj = nn.Linear(hidden, width, bias=False)
        self.v_proj = nn.Linear(hidden, width, bias=False)
        for name in ("q_conv1d", "k_conv1d", "v_conv1d"):
            setattr(
                self, name, nn.Conv1d(width, width, shape.conv_kernel, groups=width, bias=False)
            )
        self.f_a_proj = nn.Linear(hidden, size, bias=False)
        self.f_b_proj = nn.Linear(size, width, bias=False)
        self.g_a_proj = nn.Linear(hidden, size, bias=False)
        self.g_b_proj = nn.Linear(size, width, bias=False)
        self.b_proj = nn.Linear(hidden, shape.kda_heads, bias=False)
        # Decays from nothing to a few tokens: some channels remember the whole dialogue.
        self.dt_bias = nn.Parameter(torch.linspace(-7.0, -0.5, size).repeat(shape.kda_heads))
        self.A_log = nn.Parameter(torch.zeros(shape.kda_heads))
        self.o_norm = RMSNorm(size, shape.norm_eps)
        self.o_proj = nn.Linear(width, hidden, bias=False)

    @torch.no_grad()
    def start_as_copier(self) -> None:
        """Set weights so that an untrained layer already half copies.

        The first half of the heads looks up what followed the current token the last time: keys
        come from the token before, values from the token itself. The other half passes the token
        before on. Call it once the matrices hold their random values.
        """
        half = self.q_proj.out_features // 2
        first, other = slice(0, half), slice(half, None)
        for conv, lag_first, lag_other in (
            (self.q_conv1d, 0, 0), (self.k_conv1d, 1, 0), (self.v_conv1d, 0, 1),
        ):  # fmt: skip
            nn.init.normal_(conv.weight, std=0.1)
            conv.weight[first, 0, -1 - lag_first] += 1.0
            conv.weight[other, 0, -1 - lag_other] += 1.0
        self.q_proj.weight[first] = self.k_proj.weight[first]
        self.o_proj.weight.copy_(self.v_proj.weight.T)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Attend; T is a multiple of 16."""
        shape = self.shape
        qkv_weight = torch.cat([self.q_proj.weight, self.k_proj.weight, self.v_proj.weight])
        taps = torch.cat([getattr(self, f"{n}_conv1d").weight[:, 0] for n in "qkv"])
        qkv = F.silu(causal_conv(F.linear(x_BTD, qkv_weight), taps))
        raw = self.f_b_proj(self.f_a_proj(x_BTD))
        decay = log_decay(raw, self.dt_bias, self.A_log, shape.gate_floor)
        beta = torch.sigmoid(self.b_proj(x_BTD))
        out = delta_rule(*chunk_factors(qkv, decay, beta, shape.kda_heads))
        out = self.o_norm(out.transpose(1, 2)).flatten(2)
        gate = torch.sigmoid(self.g_b_proj(self.g_a_proj(x_BTD)))
        attended: Tensor = self.o_proj(out * gate)
        return attended
