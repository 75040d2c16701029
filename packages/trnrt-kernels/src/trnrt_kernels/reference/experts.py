"""Mixture of experts: router, and one grouped product per projection over tokens sorted by expert.

T tokens, D hidden, R experts, X expert width, k experts a token.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.reference.elementwise import sigmoid, swiglu
from trnrt_kernels.reference.top_k import top_k_indices


class MoeWeights(NamedTuple):
    """Weights of a block with routed and shared experts, in the order of the ops' arguments."""

    router: Tensor
    router_bias: Tensor
    experts_gate_up: Tensor
    experts_down: Tensor
    shared_gate_up_proj: Tensor
    shared_down_proj: Tensor


class RoutingRule(NamedTuple):
    """How experts are chosen, in the order of the ops' arguments."""

    num_experts_per_tok: int
    n_group: int
    topk_group: int
    norm_topk_prob: bool
    routed_scaling_factor: float


class Routing(NamedTuple):
    """Experts [T, k] int64 and the weights of their outputs [T, k] float32."""

    experts_TK: Tensor
    weights_TK: Tensor


class Layout(NamedTuple):
    """Where each (token, expert) pair lies in the rows that are sorted by expert.

    Fields:
        token_X: token of each row; T (a row of zeros) where a row belongs to no pair.
        row_TK: row of each pair.
        ends_R: end of each expert's rows; int32. Rows behind the last end are computed by nobody.
    """

    token_X: Tensor
    row_TK: Tensor
    ends_R: Tensor


def forward(
    x_TD: Tensor,
    weights: MoeWeights,
    rule: RoutingRule,
    is_live_T: Tensor,
    *,
    swiglu_limit: float,
    row_tile: int,
) -> Tensor:
    """Routed and shared experts of every token: [T, D]. Rows not live get the shared one only."""
    routing = route(x_TD, weights.router, weights.router_bias, rule)
    layout = lay_out(routing.experts_TK, is_live_T, weights.router.shape[0], row_tile)
    routed_TD = run(x_TD, routing, layout, weights, swiglu_limit)
    return routed_TD + dense(
        x_TD, weights.shared_gate_up_proj, weights.shared_down_proj, swiglu_limit
    )


def dense(x_TD: Tensor, gate_up: Tensor, down: Tensor, swiglu_limit: float) -> Tensor:
    """Clamped SwiGLU block: [T, D]; the gate's rows lie above those of the up projection."""
    return F.linear(swiglu(F.linear(x_TD, gate_up), swiglu_limit), down)


def route(x_TD: Tensor, router: Tensor, router_bias: Tensor, rule: RoutingRule) -> Routing:
    """Choose experts by corrected score and weigh them by the uncorrected one, in float32."""
    scores_TR = sigmoid(F.linear(x_TD.float(), router))
    choice_TR = scores_TR + router_bias
    if rule.n_group > 1:
        choice_TR = _keep_groups(choice_TR, rule.n_group, rule.topk_group)
    experts_TK = top_k_indices(choice_TR, rule.num_experts_per_tok)
    weights_TK = scores_TR.gather(1, experts_TK)
    if rule.norm_topk_prob:
        weights_TK = weights_TK / (weights_TK.sum(dim=1, keepdim=True) + 1e-20)
    return Routing(experts_TK, weights_TK * rule.routed_scaling_factor)


def lay_out(experts_TK: Tensor, is_live_T: Tensor, num_experts: int, row_tile: int) -> Layout:
    """Sort pairs by expert; each expert's rows are padded to a multiple of `row_tile`.

    Pairs of rows that are not live join no expert and lie behind the last end.
    """
    tokens, k = experts_TK.shape
    expert = torch.where(is_live_T.unsqueeze(1), experts_TK, num_experts).flatten()
    sorted_expert, order = expert.sort(stable=True)
    experts = torch.arange(num_experts, device=expert.device)
    ends = torch.searchsorted(sorted_expert, experts, right=True)
    token = order.div(k, rounding_mode="floor")
    row = torch.arange(tokens * k, device=expert.device)
    if row_tile > 1:
        row, ends = _tile_groups(sorted_expert, row, ends, row_tile)
        num_rows = tokens * k + min(num_experts, tokens * k) * (row_tile - 1)
        num_rows = -(-num_rows // row_tile) * row_tile
        token = torch.full((num_rows,), tokens, device=row.device).index_copy(0, row, token)
    row_of_pair = torch.empty_like(order).index_copy(0, order, row)
    return Layout(token, row_of_pair.view(tokens, k), ends.to(torch.int32))


def _tile_groups(
    sorted_expert: Tensor, row: Tensor, ends: Tensor, row_tile: int
) -> tuple[Tensor, Tensor]:
    """Move each expert's rows so that it has a multiple of `row_tile`; returns rows and ends."""
    starts = F.pad(ends, (1, 0))
    counts = starts[1:] - starts[:-1]
    tiled = (counts + (row_tile - 1)).div(row_tile, rounding_mode="floor") * row_tile
    tiled_ends = tiled.cumsum(0)
    shift = F.pad(tiled_ends, (1, 0)) - starts  # one more than experts: the rows not live
    return row + shift[sorted_expert], tiled_ends


def run(
    x_TD: Tensor, routing: Routing, layout: Layout, weights: MoeWeights, swiglu_limit: float
) -> Tensor:
    """Sum of the chosen experts' outputs times their weights, [T, D]; float32 accumulation."""
    with_zeros = F.pad(x_TD, (0, 0, 0, 1))
    x_XD = with_zeros.index_select(0, layout.token_X)
    num_experts, hidden_size = layout.ends_R.shape[0], x_TD.shape[1]
    gate_up = weights.experts_gate_up.view(num_experts, -1, hidden_size)
    hidden = swiglu(_grouped(x_XD, gate_up, layout.ends_R), swiglu_limit)
    y_XD = _grouped(hidden, weights.experts_down, layout.ends_R)
    # The grouped product leaves rows behind the last end unwritten: replace, do not multiply.
    is_written = torch.arange(y_XD.shape[0], device=y_XD.device) < layout.ends_R[-1]
    y_XD = torch.where(is_written.unsqueeze(1), y_XD, 0.0)
    tokens, k = layout.row_TK.shape
    y_TKD = y_XD.index_select(0, layout.row_TK.flatten()).view(tokens, k, -1)
    weighted = y_TKD.float() * routing.weights_TK.unsqueeze(2)
    return weighted.sum(dim=1).to(x_TD.dtype)


def _grouped(x_XD: Tensor, weight_ROD: Tensor, ends_R: Tensor) -> Tensor:
    """Multiply each expert's rows by its matrix; rows behind the last end are not written.

    Eagerly the library's grouped product makes all its views for every expert, also for the many
    that have no row; a graph needs it, as it may not look at the ends.
    """
    if torch.compiler.is_compiling():
        return F.grouped_mm(x_XD, weight_ROD.transpose(1, 2), offs=ends_R)
    out_XO = x_XD.new_empty(x_XD.shape[0], weight_ROD.shape[1])
    start = 0
    for expert, end in enumerate(ends_R.tolist()):
        if end > start:
            torch.mm(x_XD[start:end], weight_ROD[expert].t(), out=out_XO[start:end])
            start = end
    return out_XO


def _keep_groups(choice_TR: Tensor, n_group: int, topk_group: int) -> Tensor:
    """Drop all experts outside the best groups; a group is worth its two best choices."""
    tokens, num_experts = choice_TR.shape
    grouped = choice_TR.view(tokens, n_group, -1)
    worth = grouped.topk(2, dim=2).values.sum(dim=2)
    kept = top_k_indices(worth, topk_group)
    is_kept = torch.zeros_like(worth, dtype=torch.bool).scatter(1, kept, True)
    return torch.where(is_kept.unsqueeze(2), grouped, float("-inf")).view(tokens, num_experts)
