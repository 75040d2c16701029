"""Draw the next token of every row from its logits, as part of the step.

A row's result depends on that row alone. Randomness is a pure function of the request's seed and
the absolute output index (`counter_rng`); the draw runs over the whole vocabulary in descending
order, lower id first among equals, so that shards of the vocabulary can be merged into the same
order. Everything is static-shape ATen: the functions trace into the step's graph.

Shapes: B rows, V vocabulary, S state slots, N stop ids, K reported alternatives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor

from trnrt_kernels.counter_rng import uniform
from trnrt_kernels.logit_rules import (
    apply_presence_and_frequency,
    apply_repetition,
    ban_stop_ids,
    keep_mask,
)

NUM_TOP_LOGPROBS = 20


class StepOutputs(NamedTuple):
    """What a step says about each row.

    Fields:
        token_ids_B: int64.
        logprobs_B: natural log of the token's probability under the model's own distribution,
            before penalties and temperature; float32.
        top_ids_BK, top_logprobs_BK: the likeliest tokens of that distribution, best first, lower
            id first among equals; K is 0 in the greedy variant.
        is_finite_B: false where a logit is NaN or infinite; such a row must not be used.
    """

    token_ids_B: Tensor
    logprobs_B: Tensor
    top_ids_BK: Tensor
    top_logprobs_BK: Tensor
    is_finite_B: Tensor


class SamplingInputs(NamedTuple):
    """The settings of each row; integers are int64, the rest float32.

    Fields:
        slots_B: row of the `SamplingState` that belongs to the request.
        temperature_B: 0 takes the likeliest token.
        top_k_B: 0 is off. top_p_B: 1 is off. min_p_B: 0 is off.
        repetition_B: 1 is off; presence_B, frequency_B: 0 is off.
        seed_B: from `counter_rng.request_seed`.
        output_index_B: how many tokens the request has produced, resumed ones included.
        min_tokens_B: stop ids are banned while output_index < min_tokens.
        stop_ids_BN: -1 pads.
    """

    slots_B: Tensor
    temperature_B: Tensor
    top_k_B: Tensor
    top_p_B: Tensor
    min_p_B: Tensor
    repetition_B: Tensor
    presence_B: Tensor
    frequency_B: Tensor
    seed_B: Tensor
    output_index_B: Tensor
    min_tokens_B: Tensor
    stop_ids_BN: Tensor


class SamplingState(NamedTuple):
    """What sampling remembers of each request, one row per state slot.

    Fields:
        prompt_seen_SV: bool; output_counts_SV: int32; logit_bias_SV: float32.
    """

    prompt_seen_SV: Tensor
    output_counts_SV: Tensor
    logit_bias_SV: Tensor

    @classmethod
    def allocate(cls, num_slots: int, vocab_size: int) -> Self:
        """Empty state for `num_slots` requests."""
        shape = (num_slots, vocab_size)
        return cls(
            torch.zeros(shape, dtype=torch.bool),
            torch.zeros(shape, dtype=torch.int32),
            torch.zeros(shape, dtype=torch.float32),
        )

    def load_row(
        self,
        slot: int,
        prompt_ids: Sequence[int],
        prior_output_ids: Sequence[int] = (),
        logit_bias: Mapping[int, float] | None = None,
    ) -> None:
        """Replace a slot's row by what is known of a request when it is admitted."""
        self.prompt_seen_SV[slot] = False
        self.prompt_seen_SV[slot, torch.tensor(prompt_ids, dtype=torch.int64)] = True
        prior_ids = torch.tensor(prior_output_ids, dtype=torch.int64)
        vocab_size = self.output_counts_SV.shape[1]
        self.output_counts_SV[slot] = torch.bincount(prior_ids, minlength=vocab_size)
        self.logit_bias_SV[slot] = 0.0
        for token_id, bias in (logit_bias or {}).items():
            self.logit_bias_SV[slot, token_id] = bias


def sample_greedy(logits_BV: Tensor) -> StepOutputs:
    """Take the likeliest token of each row, the lower id among equals; reports no alternatives."""
    logits_BV = logits_BV.float()
    token_ids_B = logits_BV.argmax(dim=1)
    logprobs_BV = logits_BV.log_softmax(dim=1)
    return StepOutputs(
        token_ids_B,
        _pick(logprobs_BV, token_ids_B),
        token_ids_B.new_empty(logits_BV.shape[0], 0),
        logprobs_BV.new_empty(logits_BV.shape[0], 0),
        logits_BV.isfinite().all(dim=1),
    )


def sample(logits_BV: Tensor, inputs: SamplingInputs, state: SamplingState) -> StepOutputs:
    """Draw each row's next token and count it in `state.output_counts_SV` (mutated)."""
    logits_BV = logits_BV.float()
    token_ids_B = _draw(_adjusted_logits(logits_BV, inputs, state), inputs)
    ones_B = torch.ones_like(token_ids_B, dtype=torch.int32)
    state.output_counts_SV.index_put_((inputs.slots_B, token_ids_B), ones_B, accumulate=True)
    logprobs_BV = logits_BV.log_softmax(dim=1)
    top_ids_BK = top_ids(logits_BV, min(NUM_TOP_LOGPROBS, logits_BV.shape[1]))
    return StepOutputs(
        token_ids_B,
        _pick(logprobs_BV, token_ids_B),
        top_ids_BK,
        logprobs_BV.gather(1, top_ids_BK),
        logits_BV.isfinite().all(dim=1),
    )


def top_ids(values_BV: Tensor, num_ids: int) -> Tensor:
    """Ids of the largest values of each row, best first, the lower id among equals.

    `topk` alone promises no order among equal values, and a stable sort of a whole vocabulary is
    far dearer: keep all values above the last one wanted, fill up with equal ones by their count.
    """
    last_B1 = values_BV.topk(num_ids, dim=1).values[:, -1:]
    is_above_BV = values_BV > last_B1
    is_equal_BV = values_BV == last_B1
    room_B1 = num_ids - is_above_BV.sum(dim=1, keepdim=True)
    is_kept_BV = is_above_BV | (is_equal_BV & (is_equal_BV.cumsum(dim=1) <= room_B1))
    # a second key makes the order total: ids ascend, then a stable sort by value
    id_V = torch.arange(values_BV.shape[1], device=values_BV.device)
    absent = values_BV.shape[1]
    ids_BK = torch.where(is_kept_BV, id_V, absent).topk(num_ids, dim=1, largest=False).values
    ids_BK = ids_BK.clamp(max=absent - 1)  # only a row with NaN keeps too few
    order_BK = values_BV.gather(1, ids_BK).sort(dim=1, descending=True, stable=True).indices
    return ids_BK.gather(1, order_BK)


def _adjusted_logits(logits_BV: Tensor, inputs: SamplingInputs, state: SamplingState) -> Tensor:
    """Logits after penalties, bias and the ban of early stops, before temperature."""
    counts_BV = state.output_counts_SV[inputs.slots_B]
    seen_BV = state.prompt_seen_SV[inputs.slots_B] | (counts_BV > 0)
    logits_BV = apply_repetition(logits_BV, seen_BV, inputs.repetition_B)
    logits_BV = apply_presence_and_frequency(
        logits_BV, counts_BV, inputs.presence_B, inputs.frequency_B
    )
    logits_BV = logits_BV + state.logit_bias_SV[inputs.slots_B]
    return ban_stop_ids(logits_BV, inputs.stop_ids_BN, inputs.output_index_B < inputs.min_tokens_B)


def _draw(logits_BV: Tensor, inputs: SamplingInputs) -> Tensor:
    """Invert the cumulative distribution over descending ranks at one uniform number per row."""
    sorted_BV, ids_BV = logits_BV.sort(dim=1, descending=True, stable=True)
    is_greedy_B = inputs.temperature_B == 0
    temperature_B1 = torch.where(is_greedy_B, 1.0, inputs.temperature_B)[:, None]
    # relative to the likeliest: no temperature can overflow
    probs_BV = ((sorted_BV - sorted_BV[:, :1]) / temperature_B1).softmax(dim=1)
    kept_BV = keep_mask(
        probs_BV, top_k_B=inputs.top_k_B, top_p_B=inputs.top_p_B, min_p_B=inputs.min_p_B
    )
    mass_BV = torch.where(kept_BV, probs_BV, 0.0).cumsum(dim=1)
    target_B = uniform(inputs.seed_B, inputs.output_index_B) * mass_BV[:, -1]
    rank_B = (mass_BV <= target_B[:, None]).sum(dim=1)
    # rounding may lift the target to the whole mass
    rank_B = torch.minimum(rank_B, kept_BV.sum(dim=1) - 1)
    rank_B = torch.where(is_greedy_B, 0, rank_B)
    return ids_BV.gather(1, rank_B[:, None])[:, 0]


def _pick(values_BV: Tensor, ids_B: Tensor) -> Tensor:
    return values_BV.gather(1, ids_B[:, None])[:, 0]
