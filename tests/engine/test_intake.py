"""What the engine refuses before it costs anything, and how it clamps."""

from __future__ import annotations

import math

import pytest

from trnrt_engine.api import EngineRequest, SamplingParams
from trnrt_engine.errors import ContextTooLong, InvalidRequest, RequestTooLarge
from trnrt_engine.intake import RequestLimits, make_request
from trnrt_engine.request import Request

LIMITS = RequestLimits(
    vocab_size=100, max_model_len=256, num_pages=12, page_size=16, eos_token_ids=(7, 8)
)


def made(*, prompt: list[int] | None = None, limits: RequestLimits = LIMITS, **fields) -> Request:
    of_request = set(EngineRequest.__struct_fields__)
    sampling = {k: v for k, v in fields.items() if k not in of_request}
    spec = EngineRequest(
        token_ids=[1, 2, 3] if prompt is None else prompt,
        sampling=SamplingParams(**sampling),
        **{"request_id": "r", **{k: v for k, v in fields.items() if k in of_request}},
    )
    return make_request(spec, limits, arrival_s=50.0)


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", -3),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("top_p", 0.0),
        ("top_p", -1.0),
        ("top_p", 1.01),
        ("top_p", math.nan),
        ("top_k", -1),
        ("top_k", 2**63),
        ("min_p", -0.1),
        ("min_p", 1.1),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", math.inf),
        ("presence_penalty", -2.5),
        ("presence_penalty", math.nan),
        ("frequency_penalty", 2.5),
        ("logit_bias", {100: 1.0}),
        ("logit_bias", {-1: 1.0}),
        ("logit_bias", {5: 101.0}),
        ("logit_bias", {5: math.nan}),
        ("seed", -1),
        ("seed", 2**32),
        ("min_tokens", -1),
        ("min_tokens", 2**63),
        ("stop_token_ids", (100,)),
        ("stop_token_ids", (-1,)),
        ("token_ids", [2**32]),
        ("token_ids", [1, 2.5]),
        ("num_logprobs", -1),
        ("num_logprobs", 21),
        ("token_ids", []),
        ("token_ids", [5, 100]),
        ("token_ids", [-1]),
        ("prior_output_ids", [100]),
        ("choice_index", -1),
        ("marks", [2, 2]),
        ("marks", [4]),
        ("marks", [-1, 2]),
        ("deadline_s", 0.0),
        ("deadline_s", -1.0),
        ("deadline_s", math.nan),
        ("request_id", ""),
    ],
    ids=str,
)
def test_value_out_of_range_is_refused_by_name(param: str, value: object) -> None:
    fields = {"prompt": value} if param == "token_ids" else {param: value}
    with pytest.raises(InvalidRequest, match=param) as refusal:
        made(**fields)
    assert refusal.value.param == param


def test_min_tokens_beyond_max_tokens_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="min_tokens is 6, must be at most max_tokens, 5"):
        made(min_tokens=6, max_tokens=5)


def test_extremes_of_every_range_are_accepted() -> None:
    made(
        prompt=[0, 99],
        max_tokens=1,
        min_tokens=1,
        temperature=0.0,
        top_k=2**63 - 1,
        top_p=1.0,
        min_p=1.0,
        repetition_penalty=0.01,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        logit_bias={0: -100.0, 99: 100.0},
        seed=2**32 - 1,
        num_logprobs=20,
        marks=[0, 1, 2],
        deadline_s=0.001,
    )


def test_prompt_that_leaves_no_room_names_both_numbers() -> None:
    with pytest.raises(ContextTooLong, match="256 tokens; the context window of 256"):
        made(prompt=[1] * 256)


@pytest.mark.parametrize(
    ("length", "max_tokens", "expected"),
    [(10, 5, 5), (100, 50, 50), (150, None, 43), (190, None, 3), (192, None, 1), (190, 3, 3)],
)
def test_output_is_clamped(length: int, max_tokens: int | None, expected: int) -> None:
    assert made(prompt=[1] * length, max_tokens=max_tokens).max_output_tokens == expected


def test_output_is_clamped_to_the_window() -> None:
    wide = RequestLimits(
        vocab_size=100, max_model_len=256, num_pages=100, page_size=16, eos_token_ids=()
    )
    assert made(prompt=[1] * 255, max_tokens=40, limits=wide).max_output_tokens == 1
    assert made(prompt=[1] * 200, limits=wide).max_output_tokens == 56


def test_request_beyond_the_pool_is_refused() -> None:
    with pytest.raises(RequestTooLarge, match="need 13 pages") as refusal:
        made(prompt=[1] * 190, max_tokens=4)
    assert refusal.value.param == "max_tokens"
    with pytest.raises(RequestTooLarge) as refusal:
        made(prompt=[1] * 193)
    assert refusal.value.param == "token_ids"


def test_stop_ids_are_the_clients_and_the_models() -> None:
    assert made(stop_token_ids=(3,)).stop_ids == {3, 7, 8}
    assert made(stop_token_ids=(3,), ignore_eos=True).stop_ids == {3}


def test_deadline_counts_from_arrival() -> None:
    assert made(deadline_s=2.5).deadline_at_s == 52.5
