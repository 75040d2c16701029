"""Top-k: ties go to the lower index, whatever is equal."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trnrt_kernels.reference.top_k import BLOCK, max_candidates, top_k_indices

VALUES = st.sampled_from([-float("inf"), -2.5, -1e-30, -0.0, 0.0, 1e-30, 3.0, float("inf")])


def expected(scores: torch.Tensor, k: int) -> list[list[int]]:
    order = torch.sort(scores + 0.0, dim=-1, descending=True, stable=True).indices
    return [sorted(row) for row in order[..., :k].tolist()]


@given(st.lists(VALUES, min_size=1, max_size=40), st.data())
def test_equals_a_stable_sort(values: list[float], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(values)))
    scores = torch.tensor([values, values[::-1]])
    actual = top_k_indices(scores, k).sort(dim=-1).values.tolist()
    assert actual == expected(scores, k)


def test_all_equal_scores_give_the_first_indices() -> None:
    for value in (0.0, -float("inf"), 7.0, -7.0):
        indices = top_k_indices(torch.full((3, 1000), value), 128)
        assert indices.sort(dim=-1).values.tolist() == [list(range(128))] * 3


def test_random_scores() -> None:
    scores = torch.randn(20, 513, generator=torch.Generator().manual_seed(0))
    assert top_k_indices(scores, 65).sort(dim=-1).values.tolist() == expected(scores, 65)


@given(
    n=st.integers(1, 40 * BLOCK),
    k=st.integers(1, 16),
    num_values=st.sampled_from([1, 2, 7, 10_000]),
    seed=st.integers(0, 2**31),
)
def test_a_long_row_is_searched_by_blocks_with_the_same_result(n, k, num_values, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-num_values, num_values, (2, n), generator=generator) / 3.0
    k = min(k, n)
    actual = top_k_indices(scores, k).sort(dim=-1).values.tolist()
    assert actual == expected(scores, k)


@given(
    limits=st.lists(st.integers(0, 40 * BLOCK), min_size=3, max_size=3),
    n=st.sampled_from([5 * BLOCK, 40 * BLOCK]),
    k=st.integers(1, 12),
    num_values=st.sampled_from([1, 3, 10_000]),
    seed=st.integers(0, 2**31),
)
def test_entries_at_a_limit_or_above_are_not_there(limits, n, k, num_values, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-num_values, num_values, (3, n), generator=generator) / 3.0
    limits = [min(limit, n) for limit in limits]
    for row, limit in enumerate(limits):
        scores[row, limit:] = float("nan") if seed % 2 else 1e9
    picked = top_k_indices(scores, k, limits=torch.tensor(limits)).tolist()
    for row, limit in enumerate(limits):
        assert len(set(picked[row])) == k
        below = sorted(index for index in picked[row] if index < limit)
        assert below == (expected(scores[row : row + 1, :limit], min(k, limit))[0] if limit else [])


@pytest.mark.parametrize("order", ["ascending", "descending", "equal", "random"])
def test_the_released_width_over_262_144_pools(order):
    n, k = 262_144, 512
    assert max_candidates(n, k) < n // 15
    ramp = torch.arange(n, dtype=torch.float32)
    scores = {
        "ascending": ramp,
        "descending": -ramp,
        "equal": torch.zeros(n),
        "random": torch.randn(n, generator=torch.Generator().manual_seed(0)),
    }[order].unsqueeze(0)
    assert top_k_indices(scores, k).sort(dim=-1).values.tolist() == expected(scores, k)
