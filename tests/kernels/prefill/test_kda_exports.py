"""`kda_half` exports states inside a chunk: the bits a chunk cut there would have left."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.op_driver import OpDriver, random_streams
from trnrt_kernels.contract import DType, Phase
from trnrt_kernels.reference.kda import EXPORT_GRID
from trnrt_kernels.registry import get_spec
from trnrt_kernels.serving import GRID, MAX_EXPORTS

DTYPES = [torch.float32, torch.bfloat16]
NUM_SEQUENCES = 2 + MAX_EXPORTS  # the chunk's own, one for runs cut short, and targets
CUT_SHORT, FIRST_TARGET = 1, 2


def make_driver(dtype: torch.dtype) -> OpDriver:
    driver = OpDriver("kda_half", num_sequences=NUM_SEQUENCES)
    for argument in get_spec(Phase.PREFILL, "kda_half").arguments:
        for tensors in (driver.weights, driver.caches):
            if argument.name in tensors and argument.dtype is DType.ACTIVATION:
                tensors[argument.name] = tensors[argument.name].to(dtype)
    return driver


def slot(driver: OpDriver, sequence: int) -> list[Tensor]:
    return [tensor[1 + sequence].clone() for tensor in driver.caches.values()]


def exports(rows: list[int]) -> dict[str, Tensor]:
    """Export inputs; unused entries go to scratch."""
    missing = MAX_EXPORTS - len(rows)
    slots = [1 + FIRST_TARGET + index for index in range(len(rows))]
    return {
        "export_rows_E": torch.tensor([*rows, *(GRID,) * missing]),
        "export_slots_E": torch.tensor([*slots, *(0,) * missing]),
    }


def are_equal(actual: list[Tensor], expected: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("num_rows", "num_tokens", "rows"),
    [
        (256, 256, [64, 128, 192, 256]),
        (512, 512, [64, 128, 192, 256]),
        (512, 300, [256, 64]),
        (512, 512, [512, 448, 320]),
        (64, 64, [64]),
    ],
)
@pytest.mark.parametrize("start", [0, 64, 128])
def test_exported_state_is_that_of_a_chunk_cut_there(
    dtype: torch.dtype, num_rows: int, num_tokens: int, rows: list[int], start: int
) -> None:
    driver = make_driver(dtype)
    before = random_streams(128, seed=1).to(dtype)
    streams = random_streams(num_rows).to(dtype)
    streams[num_tokens:] = float("nan")
    if start:
        driver.prefill(before[:start])
        driver.prefill(before[:start], sequence=CUT_SHORT)
    at_start = slot(driver, CUT_SHORT)
    live = {"num_tokens": torch.tensor([num_tokens])}
    driver.prefill(streams, start, **live, **exports(rows))
    for index, row in enumerate(rows):
        for tensor, kept in zip(driver.caches.values(), at_start, strict=True):
            tensor[1 + CUT_SHORT] = kept
        driver.prefill(streams[:row], start, sequence=CUT_SHORT)
        found = slot(driver, FIRST_TARGET + index)
        assert are_equal(found, slot(driver, CUT_SHORT)), row


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [[], [64], [64, 128, 192, 256]], ids=len)
def test_exports_leave_the_chunk_as_it_is(dtype: torch.dtype, rows: list[int]) -> None:
    driver, streams = make_driver(dtype), random_streams(320).to(dtype)
    live = {"num_tokens": torch.tensor([290])}
    exporting = driver.prefill(streams, **live, **exports(rows))[:290]
    kept = slot(driver, 0)
    plain = driver.prefill(streams, **live)[:290]
    assert are_equal([exporting, *kept], [plain, *slot(driver, 0)])


def test_other_slots_are_not_touched() -> None:
    driver = make_driver(torch.float32)
    driver.prefill(random_streams(128), **exports([64]))
    for tensor in driver.caches.values():
        written = [index for index in range(len(tensor)) if bool(tensor[index].isfinite().all())]
        assert written == [0, 1, 1 + FIRST_TARGET]


def test_a_row_off_the_chunk_is_refused() -> None:
    driver = make_driver(torch.float32)
    with pytest.raises(IndexError):
        driver.prefill(random_streams(128), **exports([192]))


def test_the_export_grid_is_the_grid_of_prefill() -> None:
    assert EXPORT_GRID == GRID
