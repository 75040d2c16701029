"""What the demo calls sensible: each check accepts the right answer and names a wrong one."""

from __future__ import annotations

import pytest

from trnrt_cli.chat_client import Reply
from trnrt_cli.demo_questions import CONVERSATIONS, Check, calls, is_haiku, is_json, says

CALL = {"id": "1", "function": {"name": "get_time", "arguments": '{"city": "Oslo"}'}}
CUT_CALL = {"id": "1", "function": {"name": "get_time", "arguments": '{"city": "Os'}}


@pytest.mark.parametrize(
    ("check", "reply"),
    [
        (says("Oslo"), Reply(content="It is oslo.")),
        (is_haiku("rain"), Reply(content="rain falls\nsoft and low\nrain again\n")),
        (is_json({"age": 31}), Reply(content='{"age":31}')),
        (calls("get_time", city="Oslo"), Reply(tool_calls=[CALL])),
    ],
    ids=["says", "haiku", "json", "call"],
)
def test_sensible_answer_passes(check: Check, reply: Reply) -> None:
    assert check(reply) is None


@pytest.mark.parametrize(
    ("check", "reply"),
    [
        (says("Oslo", "fjord"), Reply(content="Oslo")),
        (is_haiku("rain"), Reply(content="rain falls\nsoft")),
        (is_haiku("rain"), Reply(content="a\nb\nc")),
        (is_json({"age": 31}), Reply(content='{"age": 13}')),
        (is_json({"age": 31}), Reply(content="31")),
        (is_json({"age": 31}), Reply(content="age is 31")),
        (calls("get_time", city="Oslo"), Reply(content="It is noon.")),
        (calls("get_time", city="Rome"), Reply(tool_calls=[CALL])),
        (calls("get_time", city="Oslo"), Reply(tool_calls=[CUT_CALL])),
    ],
    ids=["says", "two-lines", "topic", "value", "type", "prose", "no-call", "argument", "cut-call"],
)
def test_wrong_answer_is_named(check: Check, reply: Reply) -> None:
    assert check(reply)


def test_no_question_is_passed_by_an_empty_answer() -> None:
    for conversation in CONVERSATIONS:
        for turn in conversation.turns:
            assert turn.check(Reply()), turn
            assert bool(turn.user) != bool(turn.tool_result)
