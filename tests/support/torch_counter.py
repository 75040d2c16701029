"""The counter of `paged_counter` as a step model: same tokens, from the tensors of a step.

It reads pages only through the block table and state only through the slot, so inputs built
wrongly change the answer. Padding rows write garbage to their scratch, as a real step may.
"""

from __future__ import annotations

import torch
from torch import Tensor

from support.paged_counter import VOCAB_SIZE, draw, mix
from trnrt_kernels.models.glm5_next.inputs import DecodeInputs, PrefillInputs
from trnrt_kernels.sampling import (
    SamplingInputs,
    SamplingState,
    StepOutputs,
    sample,
    sample_greedy,
)

GARBAGE = -7


class TorchCounter:
    """Implements the model's `prefill` and `decode`; holds its own pages and states.

    Attributes:
        poisoned_slots: rows on these slots get NaN logits.
        shapes: (rows, pages) of every step, in order.
    """

    def __init__(self, *, num_pages: int, page_size: int, num_slots: int) -> None:
        self._page_size = page_size
        self._pages_ZT = torch.full((num_pages, page_size), GARBAGE)
        self._counts_S = [0] * num_slots
        self._hashes_S = [0] * num_slots
        self.poisoned_slots: set[int] = set()
        self.shapes: list[tuple[int, int]] = []

    def prefill(
        self,
        inputs: PrefillInputs,
        caches: object,
        sampling: SamplingInputs | None,
        sampling_state: SamplingState,
    ) -> StepOutputs | None:
        """Compute a chunk."""
        del caches
        self.shapes.append((len(inputs.token_ids_T), len(inputs.block_table_P)))
        num_tokens, start = int(inputs.num_tokens), int(inputs.start)
        slot, drawn = int(inputs.state_slot), 0
        for offset in range(num_tokens):
            token_id = int(inputs.token_ids_T[offset])
            drawn = self._step(slot, inputs.block_table_P, start + offset, token_id)
        if sampling is None:
            return None
        return _sample(self._logits([(slot, drawn)], num_rows=1), sampling, sampling_state)

    def decode(
        self,
        inputs: DecodeInputs,
        caches: object,
        sampling: SamplingInputs | None,
        sampling_state: SamplingState,
    ) -> StepOutputs:
        """Compute one token a row."""
        del caches
        self.shapes.append(tuple(inputs.block_table_BP.shape))
        rows = []
        for index in range(len(inputs.token_ids_B)):
            slot = int(inputs.state_slots_B[index])
            table_P = inputs.block_table_BP[index]
            if inputs.is_live_B[index]:
                position, token_id = int(inputs.positions_B[index]), int(inputs.token_ids_B[index])
                rows.append((slot, self._step(slot, table_P, position, token_id)))
            else:
                self._pages_ZT[table_P] = GARBAGE
                self._counts_S[slot] = self._hashes_S[slot] = GARBAGE
        logits_BV = self._logits(rows, num_rows=len(inputs.token_ids_B))
        return _sample(logits_BV, sampling, sampling_state)

    def _step(self, slot: int, table_P: Tensor, position: int, token_id: int) -> int:
        if position == 0:
            self._counts_S[slot] = self._hashes_S[slot] = 0
        skew = self._counts_S[slot] - position
        self._hashes_S[slot] = mix(self._hashes_S[slot], token_id + 1_000 * skew)
        self._counts_S[slot] = position + 1
        self._pages_ZT[table_P[position // self._page_size], position % self._page_size] = token_id
        seen = self._pages_ZT[table_P].flatten()[: position + 1].tolist()
        return draw(self._hashes_S[slot], seen)

    def _logits(self, rows: list[tuple[int, int]], *, num_rows: int) -> Tensor:
        """Logits whose likeliest token is the drawn one, the others falling off by distance."""
        logits_BV = torch.zeros(num_rows, VOCAB_SIZE)
        ids_V = torch.arange(VOCAB_SIZE)
        for index, (slot, drawn) in enumerate(rows):
            logits_BV[index] = -((ids_V - drawn) % VOCAB_SIZE).float()
            if slot in self.poisoned_slots:
                logits_BV[index, 3] = float("nan")
        return logits_BV


def _sample(
    logits_BV: Tensor, sampling: SamplingInputs | None, state: SamplingState
) -> StepOutputs:
    return sample_greedy(logits_BV) if sampling is None else sample(logits_BV, sampling, state)
