"""mHC: four residual streams, mixed around every layer half.

On a CPU these passes over the streams cost more than the layers they wrap, so the mixing is one
small batched product a token and the normalised projection has its gradient written out.
Shapes: N tokens, S streams (4), D hidden. The Sinkhorn normalisation keeps N last, so that the
sixteen entries of a token's matrix are sixteen long vectors.
"""

from typing import Any

import torch
from torch import Tensor, nn

from demo_training.shape import ModelShape


class _NormalisedProjection(torch.autograd.Function):
    """fn @ (x / rms(x)) for every row, in two passes over x each way."""

    @staticmethod
    def forward(ctx: Any, flat_NF: Tensor, fn: Tensor, eps: float) -> Tensor:
        width = flat_NF.shape[1]
        square_sum = torch.linalg.vector_norm(flat_NF, dim=-1).square()
        inverse_rms = torch.rsqrt(square_sum / width + eps)
        raw = flat_NF @ fn.T
        ctx.save_for_backward(flat_NF, fn, inverse_rms, raw)
        return raw * inverse_rms[:, None]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        flat, fn, inverse_rms, raw = ctx.saved_tensors
        (grad,) = grads
        grad_raw = grad * inverse_rms[:, None]
        pull = (grad * raw).sum(-1) * -(inverse_rms**3) / flat.shape[1]
        grad_flat = (grad_raw @ fn).addcmul_(flat, pull[:, None])
        return grad_flat, grad_raw.T @ flat, None


def mhc_weights(
    streams_NSD: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    *,
    sinkhorn_steps: int,
    hc_eps: float,
    norm_eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute how a layer half reads and writes the streams.

    Returns:
        pre [N, 1, S], post [N, S, 1], comb [N, S, S] with the outgoing stream first.
    """
    num_tokens, n, _ = streams_NSD.shape
    flat = streams_NSD.flatten(1)
    mixed: Tensor = _NormalisedProjection.apply(flat, fn, norm_eps)  # type: ignore[no-untyped-call]
    mixed = mixed.T
    base = base[:, None]
    pre = torch.sigmoid(mixed[:n] * scale[0] + base[:n]) + hc_eps
    post = 2 * torch.sigmoid(mixed[n : 2 * n] * scale[1] + base[n : 2 * n])
    comb = (mixed[2 * n :] * scale[2] + base[2 * n :]).view(n, n, num_tokens)
    comb = torch.softmax(comb, 1) + hc_eps
    comb = comb / (comb.sum(0, keepdim=True) + hc_eps)
    for _ in range(sinkhorn_steps - 1):
        comb = comb / (comb.sum(1, keepdim=True) + hc_eps)
        comb = comb / (comb.sum(0, keepdim=True) + hc_eps)
    return pre.T[:, None], post.T[..., None], comb.permute(2, 1, 0)


def mhc_mix(y_ND: Tensor, streams_NSD: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Write a layer half's output back into the streams: comb @ streams + post @ y."""
    together = torch.cat([comb, post], 2)
    return together @ torch.cat([streams_NSD, y_ND[:, None]], 1)


class HyperConnection(nn.Module):
    """The parameters of one layer half's mHC (`fn`, `base`, `scale` of the checkpoint)."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        n = shape.streams
        width = n + n + n * n
        self.fn = nn.Parameter(torch.randn(width, n * shape.hidden_size) * 0.02)
        # Start near "read the mean, add to every stream, keep streams apart"; the noise makes
        # the streams differ, without it they would stay equal for ever.
        base = torch.randn(width) * 0.3
        base[:n] -= 1.1
        base[2 * n :] += (torch.eye(n) * 3.0).flatten()
        self.base = nn.Parameter(base)
        self.scale = nn.Parameter(torch.full((3,), 0.5))
