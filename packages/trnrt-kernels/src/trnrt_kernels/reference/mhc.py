"""Manifold-constrained hyper-connections: N residual streams around every half of a layer.

T tokens, N streams, D hidden. All coefficients are float32.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.common.collectives import all_reduce
from trnrt_kernels.reference.elementwise import rms_norm, sigmoid


class HalfWeights(NamedTuple):
    """Coefficients and input norm of one half, in the order of the ops' arguments."""

    fn: Tensor
    base: Tensor
    scale: Tensor
    norm: Tensor


class Constants(NamedTuple):
    """Numbers of the streams, in the order of the ops' arguments."""

    rms_norm_eps: float
    hc_eps: float
    hc_sinkhorn_iters: int


class Collapsed(NamedTuple):
    """What the streams give a half, and how its output goes back into them.

    Fields:
        hidden_TD: input of the half, activation dtype.
        post_TN: weight of the half's output per stream; float32.
        comb_TNN: stream mix [from, to], doubly stochastic up to eps; float32.
    """

    hidden_TD: Tensor
    post_TN: Tensor
    comb_TNN: Tensor


def collapse(
    streams_TND: Tensor, fn: Tensor, base: Tensor, scale: Tensor, constants: Constants
) -> Collapsed:
    """Compute a half's mixing coefficients and collapse the streams into its unnormed input.

    The N*(N+2) coefficients are N+2 groups of N: input weights, output weights, rows of the mix.
    """
    tokens, n, hidden = streams_TND.shape
    wide_TND = streams_TND.float()
    raw_TGN = _coefficients(wide_TND.flatten(1), fn, constants.rms_norm_eps).view(tokens, -1, n)
    scale_G = torch.cat((scale, scale[2:].expand(n - 1)))
    logits_TGN = raw_TGN * scale_G.unsqueeze(1) + base.view(-1, n)
    weights_T2N = sigmoid(logits_TGN[:, :2])
    pre_TN, post_TN = weights_T2N.unbind(1)
    start_TNN = torch.softmax(logits_TGN[:, 2:], dim=-1) + constants.hc_eps
    comb_TNN = _sinkhorn(start_TNN, constants.hc_eps, constants.hc_sinkhorn_iters)
    hidden_TD = torch.bmm((pre_TN + constants.hc_eps).unsqueeze(1), wide_TND).view(tokens, hidden)
    return Collapsed(hidden_TD.to(streams_TND.dtype), post_TN * 2, comb_TNN)


def enter(streams_TND: Tensor, weights: HalfWeights, constants: Constants) -> Collapsed:
    """Begin a half: collapse the streams and normalise the input of its block."""
    collapsed = collapse(streams_TND, weights.fn, weights.base, weights.scale, constants)
    normed_TD = rms_norm(collapsed.hidden_TD, weights.norm, constants.rms_norm_eps)
    return collapsed._replace(hidden_TD=normed_TD)


def leave(half: Collapsed, output_TD: Tensor, streams_TND: Tensor, group_name: str) -> Tensor:
    """End a half: sum its output over the ranks and write it into the mixed streams.

    Stream j becomes `post[j] * y + sum_i comb[i, j] * X[i]`.
    """
    y_TD = all_reduce(output_TD, group_name).float()
    written_TND = half.post_TN.unsqueeze(2) * y_TD.unsqueeze(1)
    mixed_TND = torch.baddbmm(written_TND, half.comb_TNN.transpose(1, 2), streams_TND.float())
    return mixed_TND.to(streams_TND.dtype)


def _coefficients(flat_TX: Tensor, fn: Tensor, eps: float) -> Tensor:
    """Product with the RMS-normalised streams; the norm is a factor per row, applied after."""
    mean_square = torch.linalg.vector_norm(flat_TX, dim=1, keepdim=True).square() / fn.shape[1]
    return F.linear(flat_TX, fn) * torch.rsqrt(mean_square + eps)


def _sinkhorn(comb_TNN: Tensor, eps: float, iterations: int) -> Tensor:
    """Normalise columns, then `iterations - 1` times rows and columns.

    Divisors of the flattened N x N matrices, sums with `eps` added, are one product each: a last
    element that stays 1 carries `eps`. Two calls a normalisation, which are all the cost there is
    at one token; for any number of tokens.
    """
    tokens, n, _ = comb_TNN.shape
    is_eager = type(comb_TNN) is Tensor and not torch.compiler.is_compiling()
    make = _held_sum_matrices if is_eager else _sum_matrices
    by_row, by_column = make(n, eps, comb_TNN.device)
    flat_TX = F.pad(comb_TNN.reshape(tokens, n * n), (0, 1), value=1.0)
    divisors_TX = torch.mm(flat_TX, by_column)
    flat_TX = flat_TX / divisors_TX
    for _ in range(iterations - 1):
        flat_TX.div_(torch.mm(flat_TX, by_row, out=divisors_TX))
        flat_TX.div_(torch.mm(flat_TX, by_column, out=divisors_TX))
    return flat_TX[:, :-1].reshape(tokens, n, n)


def _sum_matrices(n: int, eps: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """[N*N+1, N*N+1]: from (matrix, 1) the sums of its rows, or columns, plus `eps`, and 1."""
    eye = torch.eye(n, device=device)
    by_row = eye.view(n, 1, n, 1).expand(n, n, n, n).reshape(n * n, n * n)
    by_column = eye.view(1, n, 1, n).expand(n, n, n, n).reshape(n * n, n * n)
    last = F.pad(torch.full((1, n * n), eps, device=device), (0, 1), value=1.0)
    return (
        torch.cat((F.pad(by_row, (0, 1)), last)),
        torch.cat((F.pad(by_column, (0, 1)), last)),
    )


_held_sum_matrices = cache(_sum_matrices)  # eager only: made anew they cost as much as two rounds
