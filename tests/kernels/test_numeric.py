"""Numeric modes: `fast` pads nothing, `strict` proves its tile or refuses."""

from __future__ import annotations

import pytest
import torch

from trnrt_kernels import numeric
from trnrt_kernels.numeric import CANDIDATE_TILES, NumericMode, RowsNotStable, row_tile_for

MATRICES = [torch.empty(96, 64), torch.empty(64, 96).t(), torch.empty(5)]


def test_fast_needs_no_probe() -> None:
    assert row_tile_for(NumericMode.FAST, torch.float32, iter(())) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_strict_tile_makes_rows_stable(dtype: torch.dtype) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        tile = row_tile_for(NumericMode.STRICT, dtype, [m.to(dtype) for m in MATRICES])
    finally:
        torch.set_num_threads(threads)
    assert tile in CANDIDATE_TILES
    weight = torch.randn(96, 64, generator=torch.Generator().manual_seed(5)).to(dtype)
    rows = torch.randn(200, 64, generator=torch.Generator().manual_seed(6)).to(dtype)
    whole = rows @ weight.t()
    for first in (0, 3, 77):
        part = rows[first : first + 3 * tile]
        assert torch.equal(part @ weight.t(), whole[first : first + 3 * tile])


def test_without_a_stable_tile_strict_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numeric, "CANDIDATE_TILES", ())
    numeric._stable_tile.cache_clear()
    with pytest.raises(RowsNotStable, match="run with numeric mode fast"):
        row_tile_for(NumericMode.STRICT, torch.float32, MATRICES)
    numeric._stable_tile.cache_clear()
