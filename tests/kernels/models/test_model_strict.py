"""Numeric mode `strict`: a row's bits depend neither on its batch nor on chunk cuts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.golden_models import Sequences, are_equal, golden_model, random_ids
from trnrt_kernels.numeric import NumericMode

CASES = ("kpool4", "shared_indexer", "long_group")
LENGTHS = (5, 64, 3, 130, 17, 96, 1, 44, 200, 31, 8, 77)
STEPS = 2


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def prefilled(case: str, dtype: str) -> Sequences:
    model = golden_model(case, numeric_mode=NumericMode.STRICT, dtype=dtype)
    sequences = Sequences.make(model, len(LENGTHS))
    for index, length in enumerate(LENGTHS):
        sequences.prefill(index, random_ids(model, length, seed=index))
    return sequences


def decode_run(start: Sequences, order: list[int]) -> dict[int, list[torch.Tensor]]:
    """Decode some of the sequences as one batch in the given order."""
    sequences = start.copy()
    seen: dict[int, list[torch.Tensor]] = {index: [] for index in order}
    for step in range(STEPS):
        tokens = [(31 * index + 7 * step) % 256 for index in order]
        logits = sequences.decode(order, tokens, [LENGTHS[index] + step for index in order])
        for row, index in enumerate(order):
            seen[index].append(logits[row])
    for index in order:
        seen[index] += sequences.state(index, LENGTHS[index] + STEPS)
    return seen


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        ("kpool4", "float32"),
        ("kpool4", "bfloat16"),
        ("shared_indexer", "float32"),
        ("long_group", "float32"),
    ],
)
def test_decode_rows_are_the_same_in_every_batch(case: str, dtype: str) -> None:
    start = prefilled(case, dtype)
    alone = {index: decode_run(start, [index])[index] for index in range(len(LENGTHS))}
    for size in range(2, len(LENGTHS) + 1):
        shift = 5 * size % len(LENGTHS)
        order = [(shift + i) % len(LENGTHS) for i in range(size)]
        if size % 2:
            order.reverse()
        for index, seen in decode_run(start, order).items():
            assert are_equal(seen, alone[index]), f"sequence {index} in batch {order}"


def prefill_run(case: str, cuts: list[int], total: int) -> list[torch.Tensor]:
    model = golden_model(case, numeric_mode=NumericMode.STRICT)
    sequences = Sequences.make(model, 1, fill=float("nan"))
    ids = random_ids(model, total, seed=7)
    bounds = [0, *cuts, total]
    logits = [
        sequences.prefill(0, ids[first:last], first, rows=-(-(last - first) // 64) * 64)
        for first, last in pairwise(bounds)
    ]
    return [torch.cat(logits), *sequences.state(0, total)]


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=12, deadline=None)
@given(cuts=st.sets(st.sampled_from(range(64, 320, 64))), tail=st.sampled_from([1, 37, 64]))
def test_prefill_is_the_same_for_any_cut_on_the_grid(case: str, cuts: set[int], tail: int) -> None:
    total = 256 + tail
    whole = prefill_run(case, [], total)
    cut = prefill_run(case, sorted(c for c in cuts if c < total), total)
    assert are_equal(cut, whole)
