"""What the runner hands to one step; shapes are static, lengths are values.

B rows, T chunk rows, P pages of the block table (the context bucket divided by the page size),
E states exported by a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class DecodeInputs:
    """One token of each of B sequences.

    Fields:
        token_ids_B: int64.
        positions_B: tokens before this one; int64.
        state_slots_B: slot of each sequence's fixed-size caches, all different; int64.
        block_table_BP: pages of each sequence in order; int64. Entries behind the last page in
            use may be any valid page, a padding row's are its scratch page.
        is_live_B: false for padding rows, which use scratch pages and slots; bool.
    """

    token_ids_B: Tensor
    positions_B: Tensor
    state_slots_B: Tensor
    block_table_BP: Tensor
    is_live_B: Tensor


def _nothing() -> Tensor:
    return torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, slots=True)
class PrefillInputs:
    """A chunk of one sequence.

    Fields:
        token_ids_T: rows from `num_tokens` on are padding; int64.
        start: tokens before the chunk; int64 [1].
        num_tokens: live rows, at least 1; int64 [1].
        state_slot: slot of the sequence's fixed-size caches; int64 [1].
        block_table_P: pages of the sequence in order; int64.
        export_rows_E: live rows after which a state is exported, multiples of 64; int64. E is 0
            or `serving.MAX_EXPORTS`; unused entries say 64 and export to scratch slot 0.
        export_slots_E: slots they are exported to; int64.
    """

    token_ids_T: Tensor
    start: Tensor
    num_tokens: Tensor
    state_slot: Tensor
    block_table_P: Tensor
    export_rows_E: Tensor = field(default_factory=_nothing)
    export_slots_E: Tensor = field(default_factory=_nothing)
