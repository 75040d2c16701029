"""The text model: runs the segments of a step in order on explicit caches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from trnrt_kernels.backend import Backend, CpuBackend
from trnrt_kernels.contract import Phase
from trnrt_kernels.models.glm5_next.caches import Caches
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.inputs import DecodeInputs, PrefillInputs
from trnrt_kernels.models.glm5_next.layers import Segment, SegmentKind, layer_plan
from trnrt_kernels.models.glm5_next.segments import (
    HeadVariant,
    SegmentCall,
    StepFn,
    StepInputs,
    head_step_fn,
    segment_caches,
    segment_call,
    segment_inputs,
    segment_weights,
)
from trnrt_kernels.models.glm5_next.weights import Weights
from trnrt_kernels.numeric import NumericMode, row_tile_for
from trnrt_kernels.sampling import SamplingInputs, SamplingState, StepOutputs


class SegmentResult(NamedTuple):
    """What a segment left behind.

    Fields:
        streams: [rows, N, D]; rows beyond the inputs' are padding.
        selected: logical pools per row of the last selecting layer, None before the first.
    """

    segment: Segment
    streams: Tensor
    selected: Tensor | None


class Model:
    """One rank's text model.

    In numeric mode `strict` the rows of every step are padded to `row_tile`; pad rows of a decode
    batch use the scratch page and slot of their row, so `num_scratch` must reach that far.
    """

    def __init__(
        self,
        config: Glm5NextConfig,
        weights: Weights,
        *,
        numeric_mode: NumericMode = NumericMode.STRICT,
        backend: Backend | None = None,
        group_name: str = "",
    ) -> None:
        self.backend = backend or CpuBackend()
        self.config = config
        self.weights = weights
        self.numeric_mode = numeric_mode
        self.row_tile = row_tile_for(
            numeric_mode, weights.dtype, (tensor for _, tensor in weights.items())
        )
        self.group_name = group_name
        self.plan = layer_plan(config)
        self._calls: dict[tuple[SegmentKind, Phase], tuple[SegmentCall, StepFn]] = {}
        self._heads: dict[tuple[Phase, HeadVariant], tuple[SegmentCall, StepFn]] = {}
        self._weights: dict[Segment, tuple[Tensor, ...]] = {}
        self._bound: set[tuple[int, ...]] = set()

    @torch.inference_mode()
    def prefill(
        self,
        inputs: PrefillInputs,
        caches: Caches,
        sampling: SamplingInputs | None = None,
        sampling_state: SamplingState | None = None,
    ) -> StepOutputs | None:
        """Compute a chunk; draw one token from its last live row if `sampling` is given.

        Without a `sampling_state` the likeliest token is taken and nothing is counted.

        Raises:
            ValueError: a tensor does not fit the specs.
        """
        streams = self._last_streams(self._pad_chunk(inputs), caches)
        if sampling is None:
            return None
        last_row = (inputs.num_tokens - 1).expand(self.row_tile)
        return self._sample(Phase.PREFILL, (streams, last_row), 1, sampling, sampling_state)

    @torch.inference_mode()
    def decode(
        self,
        inputs: DecodeInputs,
        caches: Caches,
        sampling: SamplingInputs | None = None,
        sampling_state: SamplingState | None = None,
    ) -> StepOutputs:
        """Compute one token of every row and draw the next one.

        Without a `sampling_state` the likeliest token is taken and nothing is counted.

        Raises:
            ValueError: a tensor does not fit the specs, or a pad row has no scratch page.
        """
        streams = self._last_streams(self._pad_batch(inputs, caches), caches)
        rows = inputs.token_ids_B.shape[0]
        return self._sample(Phase.DECODE, (streams,), rows, sampling, sampling_state)

    @torch.inference_mode()
    def prefill_logits(self, inputs: PrefillInputs, caches: Caches, rows_R: Tensor) -> Tensor:
        """Compute a chunk and the float32 logits of some of its rows: [R, V]."""
        streams = self._last_streams(self._pad_chunk(inputs), caches)
        return self.logits(streams, rows_R)

    @torch.inference_mode()
    def decode_logits(self, inputs: DecodeInputs, caches: Caches) -> Tensor:
        """Compute one token of every row and its float32 logits: [B, V]."""
        streams = self._last_streams(self._pad_batch(inputs, caches), caches)
        call, step_fn = self._head(Phase.DECODE, HeadVariant.LOGITS)
        weights = self._segment_weights(call, self.plan[-1])
        return step_fn(streams, *weights)[0][: inputs.token_ids_B.shape[0]]

    @torch.inference_mode()
    def logits(self, streams_TND: Tensor, rows_R: Tensor) -> Tensor:
        """Float32 logits of some rows of the last layer's streams: [R, V]."""
        call, step_fn = self._head(Phase.PREFILL, HeadVariant.LOGITS)
        weights = self._segment_weights(call, self.plan[-1])
        rows = F.pad(rows_R, (0, -rows_R.shape[0] % self.row_tile))
        return step_fn(streams_TND, rows, *weights)[0][: rows_R.shape[0]]

    @torch.inference_mode()
    def segments(self, inputs: StepInputs, caches: Caches) -> Iterator[SegmentResult]:
        """Run a step up to the head, one segment per item; inputs are taken as they are."""
        phase = Phase.DECODE if isinstance(inputs, DecodeInputs) else Phase.PREFILL
        must_bind = self._is_new_shape(phase, inputs, caches)
        carried: tuple[Tensor, ...] = ()
        selected: Tensor | None = None
        for segment in self.plan[:-1]:
            call, step_fn = self._segment(segment.kind, phase)
            if segment.kind is SegmentKind.DSA_SHARED and selected is not None:
                carried = (*carried, selected)
            tensors = (
                *carried,
                *segment_inputs(call, inputs),
                *self._segment_weights(call, segment),
                *segment_caches(call, segment, caches),
            )
            if must_bind:
                call.spec.bind(tensors)
            streams, *picked = step_fn(*tensors)
            selected = picked[0] if picked else selected
            carried = (streams,)
            yield SegmentResult(segment, streams, selected)

    def _last_streams(self, inputs: StepInputs, caches: Caches) -> Tensor:
        *_, last = self.segments(inputs, caches)
        return last.streams

    def _sample(
        self,
        phase: Phase,
        streams: tuple[Tensor, ...],
        num_rows: int,
        sampling: SamplingInputs | None,
        state: SamplingState | None,
    ) -> StepOutputs:
        is_greedy = sampling is None or state is None
        call, step_fn = self._head(phase, HeadVariant.GREEDY if is_greedy else HeadVariant.SAMPLE)
        weights = self._segment_weights(call, self.plan[-1])
        if sampling is None or state is None:
            outputs = step_fn(*streams, *weights)
            return StepOutputs(*(tensor[:num_rows] for tensor in outputs))
        return StepOutputs(*step_fn(*streams, *weights, *sampling, *state))

    def _segment(self, kind: SegmentKind, phase: Phase) -> tuple[SegmentCall, StepFn]:
        if (kind, phase) not in self._calls:
            call = self._call(kind, phase)
            step_fn = call.step_fn(self.backend.implementation)
            self._calls[kind, phase] = call, self.backend.load(None, None, step_fn)
        return self._calls[kind, phase]

    def _head(self, phase: Phase, variant: HeadVariant) -> tuple[SegmentCall, StepFn]:
        if (phase, variant) not in self._heads:
            call = self._call(SegmentKind.HEAD, phase)
            step_fn = head_step_fn(call, self.backend.implementation, variant)
            self._heads[phase, variant] = call, self.backend.load(None, None, step_fn)
        return self._heads[phase, variant]

    def _segment_weights(self, call: SegmentCall, segment: Segment) -> tuple[Tensor, ...]:
        """A segment's weights; both phases take the same."""
        if segment not in self._weights:
            self._weights[segment] = segment_weights(call, segment, self.weights)
        return self._weights[segment]

    def _call(self, kind: SegmentKind, phase: Phase) -> SegmentCall:
        return segment_call(
            kind, phase, self.config, row_tile=self.row_tile, group_name=self.group_name
        )

    def _is_new_shape(self, phase: Phase, inputs: StepInputs, caches: Caches) -> bool:
        """Whether this combination of shapes has not been checked against the specs yet."""
        tensors = [getattr(inputs, name) for name in inputs.__slots__]
        shape = (phase is Phase.DECODE, id(caches), *(n for t in tensors for n in t.shape))
        is_new = shape not in self._bound
        self._bound.add(shape)
        return is_new

    def _pad_chunk(self, inputs: PrefillInputs) -> PrefillInputs:
        missing = -inputs.token_ids_T.shape[0] % self.row_tile
        if missing == 0:
            return inputs
        return replace(inputs, token_ids_T=F.pad(inputs.token_ids_T, (0, missing)))

    def _pad_batch(self, inputs: DecodeInputs, caches: Caches) -> DecodeInputs:
        rows, pages = inputs.block_table_BP.shape
        missing = -rows % self.row_tile
        if missing == 0:
            return inputs
        if rows + missing > caches.geometry.num_scratch:
            raise ValueError(
                f"a decode batch of {rows} rows is padded to {rows + missing}, but there are "
                f"{caches.geometry.num_scratch} scratch pages: raise num_scratch"
            )
        scratch = torch.arange(rows, rows + missing)
        return DecodeInputs(
            token_ids_B=F.pad(inputs.token_ids_B, (0, missing)),
            positions_B=F.pad(inputs.positions_B, (0, missing)),
            state_slots_B=torch.cat((inputs.state_slots_B, scratch)),
            block_table_BP=torch.cat(
                (inputs.block_table_BP, scratch.unsqueeze(1).expand(missing, pages))
            ),
            is_live_B=F.pad(inputs.is_live_B, (0, missing)),
        )
