from __future__ import annotations

import pytest

from trnrt_router.errors import InvalidRequest
from trnrt_router.openai.chat import ChatRequest
from trnrt_router.openai.decode import decode_body, integer

MINIMAL = b'{"messages": [{}]'


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        (b"{}", "messages", "invalid_type"),
        (MINIMAL + b', "temperature": "x"}', "temperature", "invalid_type"),
        (b'{"messages": [1]}', "messages.0", "invalid_type"),
        (
            MINIMAL + b', "stream_options": {"include_usage": 3}}',
            "stream_options.include_usage",
            "invalid_type",
        ),
        (MINIMAL + b', "logit_bias": {"5": "x"}}', "logit_bias", "invalid_type"),
        (b"{", None, "invalid_json"),
        (b"[" * 100_000, None, "invalid_type"),
    ],
)
def test_error_names_the_place(body, param, code):
    with pytest.raises(InvalidRequest) as caught:
        decode_body(body, ChatRequest)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert caught.value.message[0].islower()


def test_fields_nobody_knows_are_returned_sorted():
    request, ignored = decode_body(MINIMAL + b', "b": {}, "a": 1, "n": 2}', ChatRequest)
    assert ignored == ["a", "b"]
    assert request.n == 2


def test_null_is_the_same_as_absent():
    request, ignored = decode_body(MINIMAL + b', "n": null, "stop": null}', ChatRequest)
    assert (request.n, request.stop, ignored) == (None, None, [])


@pytest.mark.parametrize("value", [5, 5.0])
def test_whole_floats_are_integers(value):
    number = integer(value, "n")
    assert (number, type(number)) == (5, int)


@pytest.mark.parametrize("value", [5.5, float("inf"), float("nan")])
def test_other_floats_are_not(value):
    with pytest.raises(InvalidRequest, match="n must be an integer"):
        integer(value, "n")
