"""A chunk that exports states, whole model: a sequence continues from one as if cut there."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from support.golden_models import Sequences, are_equal, golden_model, random_ids
from trnrt_kernels.numeric import NumericMode

TOTAL, ROWS = 210, 256
EXPORTS = {64: 1, 128: 2, 192: 3}  # rows to the sequence whose slot takes the state
EXPORT_AT = {sequence: row for row, sequence in EXPORTS.items()}


def prefilled(
    case: str, mode: NumericMode, dtype: str, exports: Mapping[int, int] | None
) -> tuple[Sequences, Tensor]:
    """Sequence 0 as one chunk on caches that hold NaN everywhere else, and its logits."""
    model = golden_model(case, numeric_mode=mode, dtype=dtype)
    sequences = Sequences.make(model, 1 + len(EXPORTS), fill=math.nan)
    ids = random_ids(model, TOTAL, seed=3)
    return sequences, sequences.prefill(0, ids, rows=ROWS, exports=exports)


@pytest.mark.parametrize("mode", list(NumericMode))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", ["kpool4", "kpool16"])
def test_exports_change_nothing_else(case: str, dtype: str, mode: NumericMode) -> None:
    plain, plain_logits = prefilled(case, mode, dtype, None)
    exporting, logits = prefilled(case, mode, dtype, EXPORTS)
    assert torch.equal(logits, plain_logits)
    assert are_equal(exporting.state(0, TOTAL), plain.state(0, TOTAL))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", ["kpool4", "kpool16"])
def test_a_sequence_continues_from_an_exported_state(case: str, dtype: str) -> None:
    """Also the proof that DSA layers export nothing: the new slot's open pool holds NaN."""
    whole, logits = prefilled(case, NumericMode.STRICT, dtype, EXPORTS)
    ids = random_ids(whole.model, TOTAL, seed=3)
    for sequence, start in EXPORT_AT.items():
        copy_first_pages(whole, sequence, start)
        rest = whole.prefill(sequence, ids[start:], start, rows=ROWS)
        assert torch.equal(rest, logits[start:]), start
        assert are_equal(whole.state(sequence, TOTAL), whole.state(0, TOTAL)), start


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_exported_states_are_those_of_runs_cut_there(dtype: str) -> None:
    whole, _ = prefilled("kpool4", NumericMode.STRICT, dtype, EXPORTS)
    ids = random_ids(whole.model, TOTAL, seed=3)
    for sequence, row in EXPORT_AT.items():
        cut = Sequences.make(whole.model, 1, fill=math.nan)
        cut.prefill(0, ids[:row])
        for exported, expected in zip(whole.caches.layers, cut.caches.layers, strict=True):
            for name in ("conv_tail", "kda_state"):
                if name in exported:
                    found = exported[name][whole.slot(sequence)]
                    assert torch.equal(found, expected[name][cut.slot(0)]), (row, name)


def copy_first_pages(sequences: Sequences, target: int, num_tokens: int) -> None:
    """Give a sequence what sequence 0 has of its first tokens; the other pages hold NaN."""
    source, own = sequences.pages(0), sequences.pages(target)
    for layer in sequences.caches.layers:
        for name in ("latents", "pool_keys"):
            if name in layer:
                count = num_tokens // sequences.caches.geometry.page_size
                layer[name][own[:count]] = layer[name][source[:count]]
