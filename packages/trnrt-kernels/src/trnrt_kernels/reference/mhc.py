"""Manifold-constrained hyper-connections: N residual streams around every half of a layer.

T tokens, N streams, D hidden. All coefficients are float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.reference.elementwise import sigmoid


class Collapsed(NamedTuple):
    """What the streams give a half, and how its output goes back into them.

    Fields:
        hidden_TD: input of the half before its norm, activation dtype.
        post_TN: weight of the half's output per stream; float32.
        comb_TNN: stream mix [from, to], doubly stochastic up to eps; float32.
    """

    hidden_TD: Tensor
    post_TN: Tensor
    comb_TNN: Tensor


def collapse(
    streams_TND: Tensor,
    fn: Tensor,
    base: Tensor,
    scale: Tensor,
    *,
    rms_norm_eps: float,
    hc_eps: float,
    hc_sinkhorn_iters: int,
) -> Collapsed:
    """Compute a half's mixing coefficients and collapse the streams into its input."""
    tokens, streams, hidden = streams_TND.shape
    parts = [streams, streams, streams * streams]
    wide_TND = streams_TND.float()
    coefficients = _coefficients(wide_TND.flatten(1), fn, rms_norm_eps)
    pre, post, comb = torch.split(coefficients, parts, dim=1)
    base_pre, base_post, base_comb = torch.split(base, parts)
    pre_TN = sigmoid(pre * scale[0] + base_pre) + hc_eps
    post_TN = 2 * sigmoid(post * scale[1] + base_post)
    logits_TNN = (comb * scale[2] + base_comb).view(tokens, streams, streams)
    comb_TNN = _sinkhorn(torch.softmax(logits_TNN, dim=-1) + hc_eps, hc_eps, hc_sinkhorn_iters)
    hidden_TD = torch.bmm(pre_TN.unsqueeze(1), wide_TND).view(tokens, hidden)
    return Collapsed(hidden_TD.to(streams_TND.dtype), post_TN, comb_TNN)


def mix(collapsed: Collapsed, output_TD: Tensor, streams_TND: Tensor) -> Tensor:
    """Write a half's output into the mixed streams: `post[j] * y + sum_i comb[i, j] * X[i]`."""
    written_TND = collapsed.post_TN.unsqueeze(2) * output_TD.float().unsqueeze(1)
    mixed_TND = torch.baddbmm(written_TND, collapsed.comb_TNN.transpose(1, 2), streams_TND.float())
    return mixed_TND.to(streams_TND.dtype)


def _coefficients(flat_TX: Tensor, fn: Tensor, eps: float) -> Tensor:
    """Product with the RMS-normalised streams; the norm is a factor per row, applied after."""
    mean_square = torch.linalg.vector_norm(flat_TX, dim=1, keepdim=True).square() / fn.shape[1]
    return F.linear(flat_TX, fn) * torch.rsqrt(mean_square + eps)


def _sinkhorn(comb_TNN: Tensor, eps: float, iterations: int) -> Tensor:
    """Normalise columns, then `iterations - 1` times rows and columns.

    Row and column sums of the flattened N x N matrices are one product each with a 0/1 matrix:
    two calls a normalisation instead of three, for any number of tokens.
    """
    tokens, n, _ = comb_TNN.shape
    eye = torch.eye(n, device=comb_TNN.device)
    same_column = eye.repeat(n, n)
    same_row = eye.repeat_interleave(n, 0).repeat_interleave(n, 1)
    epsilon = torch.full((n * n,), eps, device=comb_TNN.device)
    flat = comb_TNN.reshape(tokens, n * n)
    flat = flat / torch.addmm(epsilon, flat, same_column)
    for _ in range(iterations - 1):
        flat = flat / torch.addmm(epsilon, flat, same_row)
        flat = flat / torch.addmm(epsilon, flat, same_column)
    return flat.view(tokens, n, n)
