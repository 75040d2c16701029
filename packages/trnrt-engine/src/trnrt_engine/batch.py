"""Turn plans into the tensors of a step: padded to a bucket, padding kept away from live data.

Padding row i of a decode step works on scratch page i and state slot i, which no request ever
holds. Unused entries of a block table name a scratch page too.

B: rows of a bucket. P: pages of a context bucket. T: rows of a prefill bucket. N: stop ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trnrt_engine.api import EngineRequest
from trnrt_engine.plan import DecodeRow, Export, PrefillChunk
from trnrt_kernels.counter_rng import request_seed
from trnrt_kernels.models.glm5_next.inputs import DecodeInputs, PrefillInputs
from trnrt_kernels.sampling import SamplingInputs
from trnrt_kernels.serving import GRID, MAX_EXPORTS


@dataclass(frozen=True, slots=True)
class Buckets:
    """Sizes a step is padded to, ascending.

    Fields:
        prefill_rows: tokens of a chunk. decode_rows: sequences of a decode.
        context_pages: entries of a block table.
    """

    prefill_rows: tuple[int, ...]
    decode_rows: tuple[int, ...]
    context_pages: tuple[int, ...]


def smallest_bucket(buckets: Sequence[int], size: int) -> int:
    """Return the smallest bucket that holds `size`.

    Raises:
        ValueError: none does.
    """
    for bucket in buckets:
        if bucket >= size:
            return bucket
    raise ValueError(f"no bucket of {list(buckets)} holds {size}")


class BlockTables:
    """The block table of every state slot, kept between steps so that only new pages are copied.

    Args:
        num_slots: state slots, scratch included.
        max_pages: pages of the longest sequence.
    """

    def __init__(self, *, num_slots: int, max_pages: int) -> None:
        self._table_SP = torch.zeros(num_slots, max_pages, dtype=torch.int64)
        self._num_copied = [0] * num_slots

    def update(self, slot: int, page_ids: Sequence[int], *, is_first: bool) -> None:
        """Take over the pages a sequence has grown into; `is_first`: the slot has a new owner."""
        start = 0 if is_first else self._num_copied[slot]
        if start < len(page_ids):
            self._table_SP[slot, start : len(page_ids)] = torch.tensor(page_ids[start:])
        if is_first:
            self._table_SP[slot, len(page_ids) :] = 0
        self._num_copied[slot] = len(page_ids)

    def rows(self, slots_B: Tensor, num_pages: int) -> Tensor:
        """Return the first `num_pages` entries of each slot's table [B, P]."""
        return self._table_SP[slots_B, :num_pages]


def prefill_inputs(chunk: PrefillChunk, tables: BlockTables, buckets: Buckets) -> PrefillInputs:
    """Build the inputs of one chunk; rows behind its tokens are padding."""
    num_tokens = len(chunk.token_ids)
    num_rows = smallest_bucket(buckets.prefill_rows, num_tokens)
    num_pages = smallest_bucket(buckets.context_pages, len(chunk.page_ids))
    slot_1 = torch.tensor([chunk.state_slot])
    exports = _padded_exports(chunk.exports)
    return PrefillInputs(
        token_ids_T=torch.tensor([*chunk.token_ids, *(0,) * (num_rows - num_tokens)]),
        start=torch.tensor([chunk.start]),
        num_tokens=torch.tensor([num_tokens]),
        state_slot=slot_1,
        block_table_P=tables.rows(slot_1, num_pages)[0],
        export_rows_E=torch.tensor([rows for rows, _ in exports], dtype=torch.int64),
        export_slots_E=torch.tensor([slot for _, slot in exports], dtype=torch.int64),
    )


def _padded_exports(exports: Sequence[Export]) -> list[tuple[int, int]]:
    """Return (rows, slot) of what a chunk exports: none, or as many as can be.

    Unused ones name the first grid step, which a chunk that exports has, and scratch slot 0.
    """
    named = [(export.num_tokens, export.state_slot) for export in exports]
    return [*named, *[(GRID, 0)] * (MAX_EXPORTS - len(named))] if named else []


def decode_inputs(
    rows: Sequence[DecodeRow], tables: BlockTables, buckets: Buckets, *, drawn_B: Tensor | None
) -> DecodeInputs:
    """Build the inputs of one decode.

    Args:
        drawn_B: tokens drawn by the step before, for rows that stand on one of them; None where
            it drew none or failed, and with it every request that stands on it.
    """
    num_rows = smallest_bucket(buckets.decode_rows, len(rows))
    num_pages = smallest_bucket(buckets.context_pages, max(len(row.page_ids) for row in rows))
    padding = range(len(rows), num_rows)
    token_ids_B = torch.tensor([*(row.token_id or 0 for row in rows), *(0 for _ in padding)])
    if drawn_B is not None:
        for index, row in enumerate(rows):
            if row.previous_row is not None:
                token_ids_B[index] = drawn_B[row.previous_row]
    slots_B = torch.tensor([*(row.state_slot for row in rows), *padding])
    block_table_BP = tables.rows(slots_B, num_pages)
    block_table_BP[len(rows) :] = torch.arange(len(rows), num_rows).unsqueeze(1)
    return DecodeInputs(
        token_ids_B=token_ids_B,
        positions_B=torch.tensor([*(row.position for row in rows), *(0 for _ in padding)]),
        state_slots_B=slots_B,
        block_table_BP=block_table_BP,
        is_live_B=torch.arange(num_rows) < len(rows),
    )


@dataclass(frozen=True, slots=True)
class Draw:
    """One row that samples.

    Fields:
        slot: of the sampling state; a scratch slot where the drawn token is dropped.
        output_index: of the drawn token.
    """

    request: EngineRequest
    slot: int
    output_index: int
    stop_ids: frozenset[int]

    @property
    def is_plain_greedy(self) -> bool:
        """The likeliest token and its logprob are all that is asked for."""
        sampling = self.request.sampling
        return (
            sampling.temperature == 0.0
            and sampling.repetition_penalty == 1.0
            and sampling.presence_penalty == sampling.frequency_penalty == 0.0
            and not sampling.logit_bias
            and not sampling.num_logprobs
            and self.output_index >= sampling.min_tokens
        )


def sampling_inputs(draws: Sequence[Draw], *, num_rows: int) -> SamplingInputs:
    """Build the sampling side of a step; padding rows are greedy on scratch slots."""
    num_padding = num_rows - len(draws)

    def column(values: list[float], fill: float) -> Tensor:
        return torch.tensor([*values, *(fill,) * num_padding], dtype=torch.float32)

    def integers(values: list[int], fill: int = 0) -> Tensor:
        return torch.tensor([*values, *(fill,) * num_padding], dtype=torch.int64)

    each = [draw.request.sampling for draw in draws]
    width = max(len(draw.stop_ids) for draw in draws)
    return SamplingInputs(
        slots_B=torch.tensor([*(draw.slot for draw in draws), *range(len(draws), num_rows)]),
        temperature_B=column([s.temperature for s in each], 0.0),
        top_k_B=integers([s.top_k for s in each]),
        top_p_B=column([s.top_p for s in each], 1.0),
        min_p_B=column([s.min_p for s in each], 0.0),
        repetition_B=column([s.repetition_penalty for s in each], 1.0),
        presence_B=column([s.presence_penalty for s in each], 0.0),
        frequency_B=column([s.frequency_penalty for s in each], 0.0),
        seed_B=integers(
            [request_seed(d.request.sampling.seed, d.request.choice_index) for d in draws]
        ),
        output_index_B=integers([draw.output_index for draw in draws]),
        min_tokens_B=integers([s.min_tokens for s in each]),
        stop_ids_BN=torch.tensor(
            [
                *([*sorted(d.stop_ids), *(-1,) * (width - len(d.stop_ids))] for d in draws),
                *([-1] * width for _ in range(num_padding)),
            ],
            dtype=torch.int64,
        ).view(num_rows, width),
    )
