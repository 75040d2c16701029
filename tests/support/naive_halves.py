"""The halves of a layer token by token in float64, straight from the architecture's formulas.

Nothing here is shared with the references: loops over tokens, heads and experts, keys and values
expanded from the latents, no caches, no chunks. Slow and easy to check against a description.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Weights = dict[str, Tensor]
Block = Callable[[list[Tensor]], list[Tensor]]


def half(streams_TND: Tensor, weights: Weights, prefix: str, block: Block) -> Tensor:
    """A whole half: mHC collapse, norm, block, mix."""
    mixes = [coefficients(x, weights, prefix) for x in streams_TND.double()]
    collapsed = [pre @ x for (pre, _, _), x in zip(mixes, streams_TND.double(), strict=True)]
    normed = [rms_norm(h, weights[f"{prefix}_norm"], 1e-5) for h in collapsed]
    outputs = []
    for (_, post, comb), y, x in zip(mixes, block(normed), streams_TND.double(), strict=True):
        outputs.append(torch.outer(post, y) + comb.T @ x)
    return torch.stack(outputs)


def coefficients(x_ND: Tensor, weights: Weights, prefix: str) -> tuple[Tensor, Tensor, Tensor]:
    """Input weights, output weights and stream mix [from, to] of one token."""
    n = x_ND.shape[0]
    z = x_ND.flatten()
    m = weights[f"{prefix}_hc_fn"].double() @ (z / math.sqrt((z * z).mean() + 1e-5))
    base, scale = weights[f"{prefix}_hc_base"].double(), weights[f"{prefix}_hc_scale"].double()
    pre = torch.sigmoid(m[:n] * scale[0] + base[:n]) + 1e-6
    post = 2 * torch.sigmoid(m[n : 2 * n] * scale[1] + base[n : 2 * n])
    comb = torch.softmax((m[2 * n :] * scale[2] + base[2 * n :]).view(n, n), dim=1) + 1e-6
    for i in range(20):
        if i:
            comb = comb / (comb.sum(1, keepdim=True) + 1e-6)
        comb = comb / (comb.sum(0, keepdim=True) + 1e-6)
    return pre, post, comb


def rms_norm(z: Tensor, weight: Tensor, eps: float) -> Tensor:
    return z / math.sqrt((z * z).mean() + eps) * weight.double()


def kda(xs: list[Tensor], weights: Weights, heads: int) -> list[Tensor]:
    """Linear attention from an empty state."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    for name in ("proj", "conv"):
        parts = w[f"qkv_{name}"].chunk(3)
        w |= {f"{letter}_{name}": part for letter, part in zip("qkv", parts, strict=True)}
    size = w["q_proj"].shape[0] // heads
    state = torch.zeros(heads, size, size, dtype=torch.float64)
    raw: dict[str, list[Tensor]] = {"q": [], "k": [], "v": []}
    outputs = []
    for x in xs:
        mixed = {}
        for name, history in raw.items():
            history.append(w[f"{name}_proj"] @ x)
            taps = w[f"{name}_conv"]
            width = taps.shape[1]
            total = sum(
                taps[:, width - 1 - back] * history[-1 - back]
                for back in range(min(width, len(history)))
            )
            mixed[name] = torch.nn.functional.silu(total).view(heads, size)
        decay = (w["f_b_proj"] @ (w["f_a_proj"] @ x) + w["dt_bias"]).view(heads, size)
        g = -5.0 * torch.sigmoid(torch.exp(w["a_log"])[:, None] * decay)
        beta = torch.sigmoid(w["b_proj"] @ x)
        gate = torch.sigmoid(w["g_b_proj"] @ (w["g_a_proj"] @ x)).view(heads, size)
        out = torch.empty(heads, size, dtype=torch.float64)
        for h in range(heads):
            q = mixed["q"][h] / math.sqrt((mixed["q"][h] ** 2).sum() + 1e-6) / math.sqrt(size)
            k = mixed["k"][h] / math.sqrt((mixed["k"][h] ** 2).sum() + 1e-6)
            decayed = torch.exp(g[h])[:, None] * state[h]
            delta = beta[h] * (mixed["v"][h] - decayed.T @ k)
            state[h] = decayed + torch.outer(k, delta)
            out[h] = rms_norm(state[h].T @ q, w["o_norm"], 1e-5) * gate[h]
        outputs.append(w["o_proj"] @ out.flatten())
    return outputs


def select(
    xs: list[Tensor], weights: Weights, *, index_heads: int, pool_size: int, num_pools: int
) -> list[list[int]]:
    """Pools each token selects, ascending; among equal scores the lower pool."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    keys, gates, pooled, selected = [], [], [], []
    for x in xs:
        k = w["index_k_proj"] @ x
        k = (k - k.mean()) / math.sqrt(k.var(correction=0) + 1e-6)
        keys.append(k * w["index_k_norm"] + w["index_k_norm_bias"])
        gates.append(w["index_gate_proj"] @ x)
        if len(keys) % pool_size == 0:
            logits = torch.stack(gates[-pool_size:]) + w["index_ape"]
            share = torch.softmax(logits, dim=0)
            pooled.append((share * torch.stack(keys[-pool_size:])).sum(0))
        r = rms_norm(w["q_a_proj"] @ x, w["q_a_norm"], 1e-5)
        q = (w["index_q_proj"] @ r).view(index_heads, -1)
        head_weights = w["index_weights_proj"] @ x / math.sqrt(index_heads)
        scores = [
            float((head_weights * torch.relu(q @ key) / math.sqrt(q.shape[1])).sum())
            for key in pooled
        ]
        order = sorted(range(len(scores)), key=lambda p: (-scores[p], p))
        selected.append(sorted(order[:num_pools]))
    return selected


def dsa(
    xs: list[Tensor], weights: Weights, selected: list[list[int]], *, heads: int, pool_size: int
) -> list[Tensor]:
    """Attention over the selected pools and the open one, keys and values expanded."""
    w = {name: tensor.double() for name, tensor in weights.items()}
    key_size = w["q_b_proj"].shape[0] // heads
    up = w["kv_b_proj"].view(heads, -1, w["kv_b_proj"].shape[1])
    keys, values, outputs = [], [], []
    for t, x in enumerate(xs):
        latent = rms_norm(w["kv_a_proj"] @ x, w["kv_a_norm"], 1e-5)
        keys.append(up[:, :key_size] @ latent)
        values.append(up[:, key_size:] @ latent)
        first_open = (t + 1) // pool_size * pool_size
        seen = [p * pool_size + m for p in selected[t] for m in range(pool_size)]
        seen += range(first_open, t + 1)
        r = rms_norm(w["q_a_proj"] @ x, w["q_a_norm"], 1e-5)
        q = (w["q_b_proj"] @ r).view(heads, key_size)
        rows = []
        for h in range(heads):
            scores = torch.stack([q[h] @ keys[s][h] for s in seen]) / math.sqrt(key_size)
            share = torch.softmax(scores, dim=0)
            rows.append(sum(p * values[s][h] for p, s in zip(share, seen, strict=True)))
        outputs.append(w["o_proj"] @ torch.cat(rows))
    return outputs


def swiglu(x: Tensor, gate_up: Tensor, down: Tensor, limit: float) -> Tensor:
    """Clamped SwiGLU block of one token; the gate's rows come first."""
    gate, up = gate_up.chunk(2)
    a = (gate.double() @ x).clamp(max=limit)
    u = (up.double() @ x).clamp(-limit, limit)
    return down.double() @ (a * torch.sigmoid(a) * u)


def moe(
    x: Tensor, weights: Weights, *, k: int, n_group: int, topk_group: int, limit: float
) -> Tensor:
    """Routed and shared experts of one token."""
    w = weights
    scores = torch.sigmoid(w["router"].double() @ x)
    choice = scores + w["router_bias"].double()
    size = len(choice) // n_group
    groups = [list(range(g * size, (g + 1) * size)) for g in range(n_group)]
    if n_group > 1:
        worth = [sum(sorted((float(choice[e]) for e in g), reverse=True)[:2]) for g in groups]
        order = sorted(range(n_group), key=lambda g: (-worth[g], g))
        groups = [groups[g] for g in order[:topk_group]]
    candidates = sorted((e for g in groups for e in g), key=lambda e: (-float(choice[e]), e))
    chosen = candidates[:k]
    total = sum(float(scores[e]) for e in chosen) + 1e-20
    output = swiglu(x, w["shared_gate_up_proj"], w["shared_down_proj"], limit)
    for e in chosen:
        gate_up = w["experts_gate_up"][2 * e : 2 * e + 2].flatten(0, 1)
        expert = (gate_up, w["experts_down"][e])
        output = output + float(scores[e]) / total * 2.5 * swiglu(x, *expert, limit)
    return output
