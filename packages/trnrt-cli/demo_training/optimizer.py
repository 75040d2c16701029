"""Muon for the matrices inside the layers, AdamW for everything else."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

_ADAM_ONLY = ("embed_tokens", "lm_head", "_hc.", "conv1d", "mlp.gate.", "indexer", ".b_proj.")


def is_muon(name: str, parameter: nn.Parameter) -> bool:
    """Whether a parameter is a plain matrix, or a stack of them, inside a layer."""
    return parameter.ndim >= 2 and not any(part in name for part in _ADAM_ONLY)


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Push the singular values of each matrix [..., out, in] toward one (Newton-Schulz)."""
    is_tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if is_tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    result: Tensor = x.mT if is_tall else x
    return result


def _orthogonalise_together(stack: Tensor) -> Tensor:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    updates = torch.zeros_like(stack)
    updates[rank::world_size] = orthogonalise(stack[rank::world_size])
    dist.all_reduce(updates)
    return updates


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised: every update has the same spectral size.

    The processes of a run share the work: each orthogonalises its part of the matrices.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.95):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            by_size: dict[torch.Size, list[tuple[nn.Parameter, Tensor]]] = {}
            for parameter in group["params"]:
                momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                momentum.lerp_(parameter.grad, 1 - group["momentum"])
                update = parameter.grad.lerp(momentum, group["momentum"])
                by_size.setdefault(parameter.shape[-2:], []).append((parameter, update))
            for size, pairs in by_size.items():
                stack = torch.cat([update.reshape(-1, *size) for _, update in pairs])
                stack = _orthogonalise_together(stack)
                scale = max(1.0, size[0] / size[1]) ** 0.5
                start = 0
                for parameter, _ in pairs:
                    end = start + parameter.numel() // size.numel()
                    update = stack[start:end].view_as(parameter)
                    parameter.add_(update, alpha=-group["lr"] * scale)
                    start = end


def build(model: nn.Module, *, muon_lr: float, adam_lr: float) -> list[torch.optim.Optimizer]:
    named = list(model.named_parameters())
    plain = [p for n, p in named if not is_muon(n, p)]
    return [
        Muon([p for n, p in named if is_muon(n, p)], lr=muon_lr),
        torch.optim.AdamW(plain, lr=adam_lr, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.0),
    ]
