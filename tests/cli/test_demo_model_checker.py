"""The judge of the test prompts: right answers pass, near misses do not."""

import json

import pytest

from support.demo_training import TRAINING_DIR, import_path

import_path()
from demo_training import evaluate, writing  # noqa: E402
from demo_training.checker import (  # noqa: E402
    Answer,
    complaint,
    count_syllables,
    haiku_complaint,
    parse_answer,
)

CALL = {"kind": "call", "name": "get_time", "arguments": {"city": "Galway"}}
OBJECT = {"kind": "json", "object": {"name": "Ada", "age": 30}}


@pytest.mark.parametrize("topic", writing.HAIKUS)
def test_known_haikus_have_the_form(topic):
    assert haiku_complaint(writing.HAIKUS[topic], topic=topic) is None


@pytest.mark.parametrize("form", [form for _, form in writing.HAIKU_FORMS])
@pytest.mark.parametrize("topic", ["owl", "dragonfly", "watermelon"])
def test_haikus_on_any_topic_have_the_form(form, topic):
    assert haiku_complaint(form.format(topic), topic=topic) is None


@pytest.mark.parametrize(
    "text",
    [
        "Soft light finds the owl,\nthe world breathes again.",
        "Soft light finds the cat,\nan hour goes by on bare feet,\nthe world breathes again.",
        "owl\nan hour goes by on bare feet,\nthe world breathes again.",
        "The owl " + "and the owl " * 5 + "\nan hour goes by on bare feet,\nthe world wakes again.",
    ],
    ids=["two-lines", "other-topic", "short-line", "long-line"],
)
def test_what_is_no_haiku_is_refused(text):
    assert haiku_complaint(text, topic="owl")


@pytest.mark.parametrize(
    ("line", "count"), [("the world breathes again", 6), ("an hour goes by on bare feet", 7)]
)
def test_syllables_are_estimated(line, count):
    assert abs(count_syllables(line) - count) <= 1


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ('{"age": 30, "name": "Ada"}', True),
        ('{"name": "Ada", "age": "30"}', False),
        ('{"name": "Ada", "age": 30.0}', False),
        ('{"name": "Ada", "age": 30', False),
        ('Here: {"name": "Ada", "age": 30}', False),
        ('["name", "Ada"]', False),
    ],
)
def test_json_is_compared_with_strict_types(text, is_right):
    assert (complaint(OBJECT, Answer(text)) is None) is is_right


def test_calls_are_read_from_content_and_from_the_message():
    markup = "<tool_call>get_time<arg_key>city</arg_key><arg_value>Galway</arg_value></tool_call>"
    function = {"name": "get_time", "arguments": json.dumps({"city": "Galway"})}
    for message in ({"content": markup}, {"content": None, "tool_calls": [{"function": function}]}):
        answer = parse_answer(message)
        assert answer.content == ""
        assert complaint(CALL, answer) is None


@pytest.mark.parametrize(
    "answer",
    [
        Answer("It is late in Galway."),
        Answer("", calls=(("get_weather", {"city": "Galway"}),)),
        Answer("", calls=(("get_time", {"city": "Galwy"}),)),
        Answer("", calls=(("get_time", {"city": "Galway"}),) * 2),
    ],
    ids=["text", "other-tool", "other-city", "twice"],
)
def test_wrong_calls_are_refused(answer):
    assert complaint(CALL, answer)


def test_text_must_be_equal_and_come_without_a_call():
    expect = {"kind": "equals", "text": "You are welcome."}
    assert complaint(expect, Answer("You are welcome.")) is None
    assert complaint(expect, Answer("You are welcome"))
    assert complaint(expect, Answer("You are welcome.", calls=(("f", {}),)))


def play_with(prompt_id: str, *replies: dict) -> tuple[evaluate.Outcome, list]:
    document = json.loads((TRAINING_DIR / "prompts.json").read_text("utf-8"))
    every = [p for key in ("prompts", "long_recall") for p in document[key]]
    prompt = next(p for p in every if p["id"] == prompt_id)
    seen = []
    waiting = list(replies)

    def complete(messages, tools):
        seen.append((json.loads(json.dumps(messages)), tools))
        return waiting.pop(0)

    return evaluate.play(prompt, complete, document["tools"]), seen


def test_a_wrong_call_before_the_result_is_a_wrong_answer():
    outcome, seen = play_with("tool-answer-2", {"content": "It is 16:43 in Valletta."})
    assert outcome.complaint.startswith("before")
    assert len(seen) == 1


def test_tool_results_and_reasoning_go_back_to_the_model():
    function = {"name": "get_time", "arguments": '{"city": "Valletta"}'}
    call = {"content": "", "reasoning_content": "I call.", "tool_calls": [{"function": function}]}
    outcome, seen = play_with("tool-answer-2", call, {"content": "It is 16:43 in Valletta."})
    assert outcome.complaint is None
    history, tools = seen[1]
    assert [message["role"] for message in history] == ["user", "assistant", "tool"]
    assert history[1]["reasoning_content"] == "I call."
    assert {tool["function"]["name"] for tool in tools} == {"calculator", "get_time", "get_weather"}


def test_long_recall_puts_other_talk_between_fact_and_question():
    outcome, seen = play_with(
        "long-recall-1", {"content": "Nice."}, {"content": "Your name is Kasimir."}
    )
    assert outcome.complaint is None
    asked = seen[1][0]
    assert asked[0]["content"] == "My name is Kasimir."
    assert sum(len(message["content"]) for message in asked) > 2000
    assert not any("Kasimir" in message["content"] for message in asked[2:])
