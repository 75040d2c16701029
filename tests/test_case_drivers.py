"""The drivers can fail: every expectation they know, turned false, is a failure."""

import copy
import json
from pathlib import Path

import pytest

from case_drivers import http, sse
from case_drivers.dispatch import read_records, run_record
from case_drivers.due import waits_for
from case_drivers.operators import ABSENT, all_hold, find, holds
from case_drivers.outcome import Status

CASES = Path(__file__).parent / "cases"
BY_ID = {name: record for path in CASES.glob("*.jsonl") for name, record in read_records(path)}


def falsified(record):
    """Yield copies of a record whose expectation is wrong in one place each."""
    if record["kind"] == "render":
        yield record | {"expect_prompt": record["expect_prompt"] + "x"}
    elif record["kind"] == "render_ids":
        for token, count in record["expect"]["count_of_special"].items():
            yield record | {"expect": {"count_of_special": {token: count + 1}}}
        yield record | {"expect": {"decoded_contains": "not in there"}}
        yield record | {"expect": {"count_of_special": {"<|unknown|>": 0}}}
    elif record["kind"] == "http":
        for index in range(len(record["expect"])):
            wrong = copy.deepcopy(record)
            wrong["expect"][index] |= {"status": "eq", "value": 599}
            yield wrong
    elif record["kind"] in ("parse", "text_stream", "byte_stream"):
        for field in ("reasoning", "content", "text"):
            if field in record["expect"]:
                text = (record["expect"][field] or "") + "x"
                yield with_expectation(record, **{field: text})
        yield from falsified_calls(record)


def with_expectation(record, **fields):
    return record | {"expect": record["expect"] | fields, "accept_instead": []}


def falsified_calls(record):
    """Yield copies with a call too many, another name, another argument, another type."""
    calls = record["expect"].get("tool_calls", [])
    if record["kind"] != "parse":
        return
    yield with_expectation(record, tool_calls=[*calls, {"name": "f", "arguments": {}}])
    for index, call in enumerate(calls):
        first, *_ = [*call["arguments"], "key"]
        value = call["arguments"].get(first)
        for wrong in (
            call | {"name": call["name"] + "x"},
            call | {"arguments": call["arguments"] | {first: [value]}},
            call | {"arguments": call["arguments"] | {"other": 1}},
        ):
            yield with_expectation(record, tool_calls=[*calls[:index], wrong, *calls[index + 1 :]])
    yield with_expectation(record, finish_reason="content_filter")


TEXT_KINDS = ("render", "render_ids", "http", "parse", "text_stream", "byte_stream")
FALSIFIED = [
    (f"{name}-{index}", wrong)
    for name, record in sorted(BY_ID.items())
    if waits_for(record) is None and record["kind"] in TEXT_KINDS
    for index, wrong in enumerate(falsified(record))
]


@pytest.mark.parametrize("record", [r for _, r in FALSIFIED], ids=[n for n, _ in FALSIFIED])
def test_a_false_expectation_fails(record):
    assert run_record(record).status is Status.FAIL


def test_other_outcomes_can_be_accepted():
    record = BY_ID["DS-03.1"]
    right, wrong = record["expect"], record["expect"] | {"text": "no"}
    assert run_record(record | {"expect": wrong}).status is Status.FAIL
    for accepted in (right, "*"):
        assert run_record(record | {"expect": wrong, "accept_instead": [accepted]}).status is (
            Status.PASS
        )


@pytest.mark.parametrize(
    ("op", "value", "true_for", "false_for"),
    [
        ("eq", 1, [1], [True, 1.0, "1", 2, ABSENT]),
        ("ne", 1, [2, ABSENT], [1]),
        ("in", [1, 2], [1], [3]),
        ("le", 2, [2], [3]),
        ("lt", 2, [1], [2]),
        ("ge", 2, [2], [1]),
        ("gt", 2, [3], [2]),
        ("len", 2, [[1, 2], "ab"], [[], ABSENT]),
        ("present", None, [None, 0], [ABSENT]),
        ("absent", None, [ABSENT], [None]),
        ("not_null", None, [0], [None, ABSENT]),
        ("non_empty", None, ["a"], ["", None, ABSENT]),
        ("true", None, [True], [1, False]),
        ("null_or_empty", None, [None, "", [], ABSENT], [0, "a"]),
        ("null_or_in", ["a"], [None, "a", ABSENT], ["b", ""]),
        ("subset_of", ["a", "b"], [["a"], []], [["c"]]),
        ("matches", "^.{3,}$", ["abc"], ["ab", None]),
        ("contains", "b", ["abc"], ["ac"]),
        ("not_contains", "b", ["ac", ABSENT], ["abc"]),
        ("json_eq", {"a": 1}, ['{"a": 1}', {"a": 1}], ['{"a": true}', '{"a": 1.0}']),
        ("json_valid_for_schema", {"type": "integer"}, ["1"], ['"a"', "{"]),
    ],
)
def test_operators(op, value, true_for, false_for):
    assert [holds(item, op, value) for item in true_for] == [True] * len(true_for)
    assert [holds(item, op, value) for item in false_for] == [False] * len(false_for)


def test_paths():
    value = {"a": [{"b": 1}, {"b": 2}, {}]}
    assert find(value, "a.*.b") == [1, 2, ABSENT]
    assert find(value, "a.-2.b") == [2]
    assert find(value, "a.7.b") == find(value, "x.y") == [ABSENT]
    assert not all_hold({"a": []}, "a.*.b", "present")


def log_of(*payloads, text=None):
    events = "".join(f"data: {json.dumps(p)}\n\n" for p in payloads) + "data: [DONE]\n\n"
    return sse.EventLog(events if text is None else text, 0.1)


def chunk(**choice):
    return {"choices": [{"index": 0, "finish_reason": None, **choice}]}


GOOD = log_of(
    chunk(delta={"role": "assistant", "content": "a"}),
    chunk(delta={"content": "b"}),
    chunk(delta={}, finish_reason="stop"),
    {"choices": [], "usage": {"total_tokens": 3, "prompt_tokens": 1, "completion_tokens": 2}},
)
CALLS = log_of(
    *(
        chunk(delta={"tool_calls": [{"index": 0, **call}]})
        for call in (
            {"id": "call_1", "function": {"name": "f", "arguments": '{"a"'}},
            {"function": {"arguments": ": 1}"}},
        )
    )
)
FAILED = log_of(text=': wait\n\ndata: {"choices": []}\n\ndata: {"error": {"message": "x"}}\n\n')


@pytest.mark.parametrize(
    ("log", "entry", "wrong"),
    [
        (GOOD, {"sse": "last_data_is", "value": "[DONE]"}, {"value": "x"}),
        (GOOD, {"sse": "every_chunk", "path": "choices", "op": "present"}, {"path": "id"}),
        (
            GOOD,
            {"sse": "count_chunks_with", "path": "usage", "op": "not_null", "value": 1},
            {"value": 0},
        ),
        (
            GOOD,
            {
                "sse": "chunk",
                "index": -1,
                "path": "usage.total_tokens",
                "op": "eq_expr",
                "value": "usage.prompt_tokens + usage.completion_tokens",
            },
            {"value": "usage.prompt_tokens + usage.prompt_tokens"},
        ),
        (GOOD, {"sse": "first_delta", "path": "role", "op": "present"}, {"op": "absent"}),
        (GOOD, {"sse": "every_later_delta", "path": "role", "op": "absent"}, {"op": "present"}),
        (GOOD, {"sse": "joined_content", "op": "eq", "value": "ab"}, {"value": "a"}),
        (GOOD, {"sse": "finish_reasons", "op": "eq", "value": ["stop"]}, {"value": []}),
        (GOOD, {"sse": "choice_indices", "op": "eq", "value": [0]}, {"value": [0, 1]}),
        (
            GOOD,
            {
                "sse": "every_chunk_choice",
                "path": "finish_reason",
                "op": "null_or_in",
                "value": ["stop"],
            },
            {"value": []},
        ),
        (GOOD, {"sse": "headers_within_s", "op": "le", "value": 1}, {"value": 0}),
        (CALLS, {"sse": "tool_delta_first", "path": "id", "op": "present"}, {"path": "x"}),
        (CALLS, {"sse": "tool_delta_later", "path": "id", "op": "absent"}, {"op": "present"}),
        (
            CALLS,
            {"sse": "joined_arguments", "index": 0, "op": "json_eq", "value": {"a": 1}},
            {"value": {"a": True}},
        ),
        (
            FAILED,
            {"sse": "some_data_has", "path": "error.message", "op": "present"},
            {"path": "error.code"},
        ),
        (
            FAILED,
            {"sse": "comment_lines_before_first_data", "op": "ge", "value": 1},
            {"value": 2},
        ),
    ],
)
def test_stream_checks(log, entry, wrong):
    assert sse.check(log, entry)
    assert not sse.check(log, entry | wrong)


def test_stream_checks_without_a_value():
    assert sse.check(FAILED, {"sse": "no_finish_reason_before_error"})
    assert not sse.check(GOOD, {"sse": "no_finish_reason_before_error"})
    assert sse.check(GOOD, {"sse": "finish_reason_is_last_for_choice"})
    assert not sse.check(
        log_of(chunk(finish_reason="stop"), chunk()), {"sse": "finish_reason_is_last_for_choice"}
    )
    assert sse.check(GOOD, {"sse": "parse_ok"})
    for text in ("data: {}\n", "data: {\n\n", "data: {}\ndata: {}\n\n", "{}\n\n"):
        assert not sse.check(log_of(text=text), {"sse": "parse_ok"})


def test_logprobs_of_a_stream():
    tokens = [{"token": "a", "top_logprobs": []}, {"token": "<|user|>", "top_logprobs": []}]
    log = log_of(*(chunk(logprobs={"content": [token]}) for token in tokens))
    joined = {"sse": "joined_logprobs_tokens", "op": "eq", "value": ["a", "<|user|>", "x"]}
    assert sse.check(log, joined | {"optional_last": True})
    assert not sse.check(log, joined)
    assert sse.check(log, {"sse": "every_logprob", "path": "top_logprobs", "op": "len", "value": 0})


def test_what_no_driver_knows_is_an_error():
    with pytest.raises(ValueError, match="unknown op"):
        holds(1, "approximately")
    with pytest.raises(ValueError, match="unknown sse"):
        sse.check(GOOD, {"sse": "smells"})
    assert http.expand({"a": [{"$repeat": "x", "times": 3}]}) == {"a": ["xxx"]}
