"""Numeric mode: one number, `row_tile`, to which row counts of matrix products are padded.

`fast` = 1. `strict` = the smallest tile for which this build's products give a row the same bits
whatever rows are beside it, proven by a probe at start-up: libraries switch kernels at small row
counts, and which counts those are depends on CPU, build, dtype and threads.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING

from trnrt_kernels.errors import TrnrtKernelsError

if TYPE_CHECKING:
    import torch

CANDIDATE_TILES = (4, 8, 16)
_PROBE_ROWS = 64
_LARGEST_PROBED = 1 << 24  # elements; larger matrices repeat the kernels of smaller ones


class NumericMode(StrEnum):
    """`STRICT`: a row's bits do not depend on its batch or chunk. `FAST`: within rounding."""

    FAST = "fast"
    STRICT = "strict"


class RowsNotStable(TrnrtKernelsError, RuntimeError):
    """No row tile makes this build's matrix products independent of the rows beside a row."""


def row_tile_for(mode: NumericMode, dtype: torch.dtype, matrices: Iterable[torch.Tensor]) -> int:
    """The row tile of a mode, probed on the shapes and memory orders of a model's matrices.

    Raises:
        RowsNotStable: strict, and no candidate passes.
    """
    if mode is NumericMode.FAST:
        return 1
    import torch

    probes = {
        (tuple(m.shape), m.stride(0) == 1, m.dtype)
        for m in matrices
        if m.dim() == 2 and m.numel() <= _LARGEST_PROBED
    }
    tiles = [_stable_tile(*probe, torch.get_num_threads()) for probe in sorted(probes, key=str)]
    if None in tiles:
        raise RowsNotStable(
            f"rows of {dtype} products depend on their batch for every tile of "
            f"{CANDIDATE_TILES} with {torch.get_num_threads()} threads: run with numeric mode "
            f"fast, or with one thread"
        )
    return max((tile for tile in tiles if tile is not None), default=CANDIDATE_TILES[0])


@cache
def _stable_tile(
    shape: tuple[int, int], is_transposed: bool, dtype: torch.dtype, num_threads: int
) -> int | None:
    """Smallest tile that is stable for one matrix; None if none is."""
    del num_threads  # part of the cache key
    import torch

    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator).to(dtype)
    if is_transposed:
        weight = weight.t().contiguous().t()
    rows = torch.randn(_PROBE_ROWS, shape[1], generator=generator).to(dtype)
    expected = torch.nn.functional.linear(rows, weight)
    for tile in CANDIDATE_TILES:
        if all(
            torch.equal(
                torch.nn.functional.linear(rows[first : first + count], weight),
                expected[first : first + count],
            )
            for count in range(tile, _PROBE_ROWS // 2 + 1, tile)
            for first in (0, tile, _PROBE_ROWS // 2)
        ):
            return tile
    return None
