"""Top-k: ties go to the lower index, whatever is equal."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from trnrt_kernels.reference.top_k import top_k_indices

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
