"""Clamped SwiGLU, dense and as a mixture of experts. N tokens, E experts, D hidden, I inner."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo_training.shape import ModelShape


def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    return F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)


class FeedForward(nn.Module):
    def __init__(self, shape: ModelShape, inner: int) -> None:
        super().__init__()
        self.limit = shape.swiglu_limit
        self.gate_proj = nn.Linear(shape.hidden_size, inner, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, inner, bias=False)
        self.down_proj = nn.Linear(inner, shape.hidden_size, bias=False)

    def forward(self, x_ND: Tensor) -> Tensor:
        hidden: Tensor = self.down_proj(
            swiglu(self.gate_proj(x_ND), self.up_proj(x_ND), self.limit)
        )
        return hidden


class Router(nn.Module):
    """Sigmoid scores; the bias only steers the choice and is moved by hand, not by gradient."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.weight = nn.Parameter(torch.randn(shape.num_experts, shape.hidden_size) * 0.02)
        self.e_score_correction_bias: Tensor
        self.register_buffer("e_score_correction_bias", torch.zeros(shape.num_experts))
        self.counts = torch.zeros(shape.num_experts)

    def forward(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Expert ids and weights of each token, both [N, experts per token]."""
        scores = torch.sigmoid(F.linear(x_ND, self.weight))
        choice = scores.detach() + self.e_score_correction_bias
        ids = choice.topk(self.shape.experts_per_token, -1).indices
        weights = scores.gather(-1, ids)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20) * self.shape.routed_scale
        if self.training:
            self.counts = torch.bincount(ids.flatten(), minlength=self.shape.num_experts).float()
        return ids, weights

    @torch.no_grad()
    def balance(self, rate: float) -> None:
        """Move the bias one step toward equal loads of the last batch."""
        self.e_score_correction_bias += rate * torch.sign(self.counts.mean() - self.counts)


class Experts(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.limit = shape.swiglu_limit
        experts, hidden, inner = shape.num_experts, shape.hidden_size, shape.moe_intermediate_size
        self.gate_proj = nn.Parameter(torch.randn(experts, inner, hidden) * hidden**-0.5)
        self.up_proj = nn.Parameter(torch.randn(experts, inner, hidden) * hidden**-0.5)
        self.down_proj = nn.Parameter(torch.randn(experts, hidden, inner) * inner**-0.5)

    def forward(self, x_ND: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        per_token = ids.shape[1]
        order = ids.flatten().argsort()
        tokens = order // per_token
        sizes = torch.bincount(ids.flatten(), minlength=len(self.gate_proj)).tolist()
        groups = torch.split(x_ND[tokens], sizes)
        outputs = [
            swiglu(group @ gate.T, group @ up.T, self.limit) @ down.T
            for group, gate, up, down in zip(
                groups, self.gate_proj, self.up_proj, self.down_proj, strict=True
            )
        ]
        weighted = torch.cat(outputs) * weights.flatten()[order][:, None]
        return torch.zeros_like(x_ND).index_add(0, tokens, weighted)


class MixtureOfExperts(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate = Router(shape)
        self.experts = Experts(shape)
        self.shared_experts = FeedForward(shape, shape.moe_intermediate_size)

    def forward(self, x_ND: Tensor) -> Tensor:
        ids, weights = self.gate(x_ND)
        routed: Tensor = self.experts(x_ND, ids, weights)
        shared: Tensor = self.shared_experts(x_ND)
        return routed + shared
