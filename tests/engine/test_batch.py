"""The tensors of a step: padded to buckets, padding on scratch."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from trnrt_engine.api import EngineRequest, SamplingParams
from trnrt_engine.batch import (
    BlockTables,
    Buckets,
    Draw,
    decode_inputs,
    prefill_inputs,
    sampling_inputs,
    smallest_bucket,
)
from trnrt_engine.plan import DecodeRow, Export, PrefillChunk
from trnrt_kernels.counter_rng import request_seed

BUCKETS = Buckets(prefill_rows=(64, 128), decode_rows=(1, 2, 4), context_pages=(1, 2, 8))
REQUEST = EngineRequest(request_id="r", token_ids=[5, 6, 7])


def row(**fields) -> DecodeRow:
    usual = {
        "request": REQUEST,
        "state_slot": 6,
        "page_ids": [9],
        "position": 3,
        "token_id": 11,
        "previous_row": None,
        "output_index": 1,
        "is_forced": False,
        "stop_ids": frozenset(),
    }
    return DecodeRow(**{**usual, **fields})


def draw(*, slot: int = 6, output_index: int = 4, stop_ids=(), choice_index: int = 0, **sampling):
    request = EngineRequest(
        request_id="r",
        token_ids=[1],
        choice_index=choice_index,
        sampling=SamplingParams(**{"temperature": 0.0, **sampling}),
    )
    return Draw(request, slot, output_index, frozenset(stop_ids))


@pytest.mark.parametrize(("size", "bucket"), [(1, 1), (2, 2), (3, 4), (4, 4)])
def test_smallest_bucket_holds_the_size(size: int, bucket: int) -> None:
    assert smallest_bucket((1, 2, 4), size) == bucket


def test_size_beyond_every_bucket_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no bucket of \[1, 2, 4\] holds 5"):
        smallest_bucket((1, 2, 4), 5)


def test_block_table_follows_growth_and_new_owners() -> None:
    tables = BlockTables(num_slots=3, max_pages=4)
    tables.update(1, [7, 8, 9], is_first=True)
    tables.update(1, [7, 8, 9, 10], is_first=False)
    tables.update(2, [3], is_first=True)
    rows = tables.rows(torch.tensor([2, 1]), 4)
    assert rows.tolist() == [[3, 0, 0, 0], [7, 8, 9, 10]]
    tables.update(1, [5], is_first=True)
    tables.update(1, [5, 6], is_first=False)
    assert tables.rows(torch.tensor([1]), 4).tolist() == [[5, 6, 0, 0]]


def test_rows_of_a_table_are_a_copy() -> None:
    tables = BlockTables(num_slots=1, max_pages=2)
    tables.rows(torch.tensor([0]), 2).fill_(5)
    assert tables.rows(torch.tensor([0]), 2).tolist() == [[0, 0]]


def test_chunk_is_padded_to_its_buckets() -> None:
    tables = BlockTables(num_slots=8, max_pages=8)
    tables.update(6, [9, 10, 12], is_first=True)
    chunk = PrefillChunk(
        request=REQUEST,
        state_slot=6,
        page_ids=[9, 10, 12],
        start=64,
        token_ids=[1, 2, 3],
        is_first=False,
        samples=True,
        stop_ids=frozenset(),
    )
    inputs = prefill_inputs(chunk, tables, BUCKETS)
    assert inputs.token_ids_T.tolist() == [1, 2, 3, *[0] * 61]
    assert inputs.block_table_P.tolist() == [9, 10, 12, 0, 0, 0, 0, 0]
    assert (inputs.start.tolist(), inputs.num_tokens.tolist()) == ([64], [3])
    assert inputs.state_slot.tolist() == [6]


def test_exports_are_padded_to_as_many_as_can_be() -> None:
    tables = BlockTables(num_slots=8, max_pages=8)
    chunk = PrefillChunk(
        request=REQUEST,
        state_slot=6,
        page_ids=[9],
        start=0,
        token_ids=[1] * 64,
        is_first=True,
        samples=True,
        stop_ids=frozenset(),
        exports=(Export(64, 30),),
    )
    inputs = prefill_inputs(chunk, tables, BUCKETS)
    assert inputs.export_rows_E.tolist() == [64, 64, 64, 64]
    assert inputs.export_slots_E.tolist() == [30, 0, 0, 0]
    without = prefill_inputs(dataclasses.replace(chunk, exports=()), tables, BUCKETS)
    assert len(without.export_rows_E) == len(without.export_slots_E) == 0


def test_padding_rows_of_a_decode_live_on_their_own_scratch() -> None:
    tables = BlockTables(num_slots=8, max_pages=8)
    tables.update(6, [9, 10], is_first=True)
    tables.update(5, [11], is_first=True)
    rows = [
        row(page_ids=[9, 10], position=70),
        row(state_slot=5, page_ids=[11]),
        row(state_slot=4, page_ids=[8]),
    ]
    tables.update(4, [8], is_first=True)
    inputs = decode_inputs(rows, tables, BUCKETS, drawn_B=None)
    assert inputs.state_slots_B.tolist() == [6, 5, 4, 3]
    assert inputs.block_table_BP.tolist() == [[9, 10], [11, 0], [8, 0], [3, 3]]
    assert inputs.is_live_B.tolist() == [True, True, True, False]
    assert inputs.positions_B.tolist() == [70, 3, 3, 0]
    assert inputs.token_ids_B.tolist() == [11, 11, 11, 0]


def test_token_in_flight_is_taken_from_the_step_before() -> None:
    tables = BlockTables(num_slots=8, max_pages=8)
    rows = [row(token_id=None, previous_row=2), row(state_slot=5, token_id=33)]
    inputs = decode_inputs(rows, tables, BUCKETS, drawn_B=torch.tensor([70, 71, 72]))
    assert inputs.token_ids_B.tolist() == [72, 33]


def test_sampling_rows_carry_every_setting() -> None:
    draws = [
        draw(
            temperature=0.7,
            top_p=0.9,
            top_k=40,
            min_p=0.05,
            repetition_penalty=1.1,
            presence_penalty=0.2,
            frequency_penalty=0.3,
            seed=17,
            choice_index=2,
            min_tokens=9,
            stop_ids=(8, 3),
        ),
        draw(slot=5, stop_ids=(4,)),
    ]
    inputs = sampling_inputs(draws, num_rows=4)
    assert inputs.slots_B.tolist() == [6, 5, 2, 3]
    assert inputs.temperature_B.tolist() == pytest.approx([0.7, 0.0, 0.0, 0.0])
    assert inputs.top_p_B.tolist() == pytest.approx([0.9, 1.0, 1.0, 1.0])
    assert inputs.top_k_B.tolist() == [40, 0, 0, 0]
    assert inputs.min_p_B.tolist() == pytest.approx([0.05, 0.0, 0.0, 0.0])
    assert inputs.repetition_B.tolist() == pytest.approx([1.1, 1.0, 1.0, 1.0])
    assert inputs.presence_B.tolist() == pytest.approx([0.2, 0.0, 0.0, 0.0])
    assert inputs.frequency_B.tolist() == pytest.approx([0.3, 0.0, 0.0, 0.0])
    assert inputs.seed_B.tolist()[0] == request_seed(17, 2)
    assert inputs.output_index_B.tolist()[:2] == [4, 4]
    assert inputs.min_tokens_B.tolist() == [9, 0, 0, 0]
    assert inputs.stop_ids_BN.tolist() == [[3, 8], [4, -1], [-1, -1], [-1, -1]]


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.1},
        {"repetition_penalty": 1.2},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"logit_bias": {3: 1.0}},
        {"num_logprobs": 1},
        {"min_tokens": 5},
    ],
    ids=lambda sampling: next(iter(sampling)),
)
def test_row_that_asks_for_more_is_not_plain_greedy(sampling: dict) -> None:
    assert not draw(**sampling).is_plain_greedy


def test_plain_greedy_ignores_what_greedy_ignores() -> None:
    assert draw(top_p=0.5, top_k=3, min_p=0.1, num_logprobs=0, min_tokens=4).is_plain_greedy
