"""Execute plans on a model: build a step's tensors, launch it, read what it drew."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from trnrt_engine.batch import (
    BlockTables,
    Buckets,
    Draw,
    decode_inputs,
    prefill_inputs,
    sampling_inputs,
)
from trnrt_engine.plan import DecodeRow, PrefillChunk, SchedulerOutput, StepResult
from trnrt_kernels.models.glm5_next.caches import Caches
from trnrt_kernels.models.glm5_next.inputs import DecodeInputs, PrefillInputs
from trnrt_kernels.sampling import SamplingInputs, SamplingState, StepOutputs


class StepModel(Protocol):
    """What the runner needs of a model; `trnrt_kernels.models.glm5_next.model.Model` has it."""

    def prefill(
        self,
        inputs: PrefillInputs,
        caches: Caches,
        sampling: SamplingInputs | None,
        sampling_state: SamplingState,
    ) -> StepOutputs | None:
        """Compute a chunk; draw from its last row when `sampling` is given."""

    def decode(
        self,
        inputs: DecodeInputs,
        caches: Caches,
        sampling: SamplingInputs | None,
        sampling_state: SamplingState,
    ) -> StepOutputs:
        """Compute one token of each row and draw the next; greedily without `sampling`."""


class LaunchedStep:
    """A step under way; its tensors are read when the result is asked for."""

    def __init__(self, outputs: StepOutputs | None, num_rows: int) -> None:
        self._outputs = outputs
        self._num_rows = num_rows

    def result(self) -> StepResult:
        """Read what was drawn, one entry a row; padding rows are dropped."""
        outputs, num_rows = self._outputs, self._num_rows
        if outputs is None:
            return StepResult()
        ids_BK, logprobs_BK = outputs.top_ids_BK[:num_rows], outputs.top_logprobs_BK[:num_rows]
        return StepResult(
            token_ids=outputs.token_ids_B[:num_rows].tolist(),
            logprobs=outputs.logprobs_B[:num_rows].tolist(),
            top=[
                list(zip(ids, logprobs, strict=True))
                for ids, logprobs in zip(ids_BK.tolist(), logprobs_BK.tolist(), strict=True)
            ],
            is_finite=outputs.is_finite_B[:num_rows].tolist(),
        )


class Runner:
    """Owns caches, sampling state and block tables, and runs steps on them in launch order.

    Args:
        num_slots: state slots of sequences, scratch included.

    Attributes:
        caches, sampling_state: mutated by every step.
    """

    def __init__(
        self,
        model: StepModel,
        caches: Caches,
        sampling_state: SamplingState,
        *,
        buckets: Buckets,
        num_slots: int,
    ) -> None:
        self._model = model
        self.caches = caches
        self.sampling_state = sampling_state
        self._buckets = buckets
        self._tables = BlockTables(num_slots=num_slots, max_pages=buckets.context_pages[-1])
        self._drawn_B: Tensor | None = None

    @torch.inference_mode()
    def launch(self, plan: SchedulerOutput) -> LaunchedStep:
        """Start a step; rows may stand on tokens of the step launched before it."""
        drawn_B, self._drawn_B = self._drawn_B, None  # nothing to stand on if this step raises
        for save in plan.saves:
            self._copy(save.source_slot, save.state_slot, save.page_copies)
        outputs: StepOutputs | None = None
        num_rows = len(plan.decode)
        if plan.prefill is not None:
            outputs, num_rows = self._prefill(plan.prefill), 1
        elif plan.decode:
            outputs = self._decode(plan.decode, drawn_B)
        self._drawn_B = None if outputs is None else outputs.token_ids_B
        return LaunchedStep(outputs, num_rows)

    def _prefill(self, chunk: PrefillChunk) -> StepOutputs | None:
        request, slot = chunk.request, chunk.state_slot
        self._tables.update(slot, chunk.page_ids, is_first=chunk.is_first)
        if chunk.restore is not None:
            self._copy(chunk.restore.state_slot, slot, chunk.restore.page_copies)
        if chunk.is_first:
            self.sampling_state.load_row(
                slot, request.token_ids, request.prior_output_ids, request.sampling.logit_bias
            )
        draw = Draw(request, slot, 0, chunk.stop_ids)
        sampling = sampling_inputs([draw], num_rows=1) if chunk.samples else None
        inputs = prefill_inputs(chunk, self._tables, self._buckets)
        return self._model.prefill(inputs, self.caches, sampling, self.sampling_state)

    def _copy(self, source: int, target: int, page_copies: Sequence[tuple[int, int]]) -> None:
        """Copy a state slot, and pages with it."""
        self.caches.copy_slot(source, target)
        for from_page, to_page in page_copies:
            self.caches.copy_page(from_page, to_page)

    def _decode(self, rows: Sequence[DecodeRow], drawn_B: Tensor | None) -> StepOutputs:
        for row in rows:
            self._tables.update(row.state_slot, row.page_ids, is_first=row.is_first)
        inputs = decode_inputs(rows, self._tables, self._buckets, drawn_B=drawn_B)
        # What a forced row draws is dropped: it is counted on the scratch slot of its row.
        draws = [
            Draw(
                row.request,
                slot=index if row.is_forced else row.state_slot,
                output_index=row.output_index,
                stop_ids=row.stop_ids,
            )
            for index, row in enumerate(rows)
        ]
        is_greedy = all(draw.is_plain_greedy for draw in draws)
        num_rows = len(inputs.token_ids_B)
        sampling = None if is_greedy else sampling_inputs(draws, num_rows=num_rows)
        return self._model.decode(inputs, self.caches, sampling, self.sampling_state)
