"""Tool round trips of the real client with the demo model, streamed and whole."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest

from support.demo_folder import DEMO_DIR
from support.served import served


def function(name: str, description: str, parameter: str) -> dict:
    properties = {parameter: {"type": "string"}}
    parameters = {"type": "object", "properties": properties, "required": [parameter]}
    about = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": about}


TOOLS = [
    function("get_weather", "Get the weather for a city", "city"),
    function("get_time", "Get the current time in a city", "city"),
    function("calculator", "Evaluate an arithmetic expression", "expression"),
]
QUESTIONS = [
    ("What is the weather in Osaka?", "get_weather", {"city": "Osaka"}),
    ("What time is it in Galway?", "get_time", {"city": "Galway"}),
    ("What is 374 + 589?", "calculator", {"expression": "374 + 589"}),
]


@pytest.fixture(scope="module")
def client() -> Iterator[openai.OpenAI]:
    with served(DEMO_DIR, "--engines", "1") as running, running.client() as openai_client:
        yield openai_client


def asked(question: str, **fields: object) -> dict:
    messages = [{"role": "user", "content": question}]
    return {"model": "glm", "messages": messages, "tools": TOOLS, "temperature": 0, **fields}


@pytest.mark.parametrize(("question", "name", "arguments"), QUESTIONS)
def test_each_tool_is_called(client, question, name, arguments):
    [choice] = client.chat.completions.create(**asked(question)).choices
    [call] = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == name
    assert json.loads(call.function.arguments) == arguments
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert "<tool_call>" not in choice.message.reasoning_content


def test_round_trip(client):
    request = asked("What is the weather in Lisbon?")
    message = client.chat.completions.create(**request).choices[0].message
    [call] = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"sky": "sunny", "temp": 24}'}
    request["messages"] += [message.model_dump(exclude_none=True), result]
    [choice] = client.chat.completions.create(**request).choices
    assert choice.finish_reason == "stop"
    assert choice.message.tool_calls is None
    assert all(word in choice.message.content for word in ("Lisbon", "sunny", "24"))


def test_streamed_round_trip(client):
    request = asked("What is the weather in Lisbon?")
    with client.chat.completions.stream(**request) as stream:
        events = [event.type for event in stream]
        message = stream.get_final_completion().choices[0].message
    [call] = message.tool_calls
    assert "tool_calls.function.arguments.delta" in events
    assert events.count("tool_calls.function.arguments.done") == 1
    assert (call.function.name, json.loads(call.function.arguments)) == (
        *("get_weather", {"city": "Lisbon"}),
    )
    called = {"name": call.function.name, "arguments": call.function.arguments}
    history = {
        "role": "assistant",
        "content": message.content,
        "reasoning_content": message.reasoning_content,
        "tool_calls": [{"id": call.id, "type": "function", "function": called}],
    }
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"sky": "sunny", "temp": 24}'}
    request["messages"] += [history, result]
    chunks = list(client.chat.completions.create(**request, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert all(word in text for word in ("Lisbon", "sunny", "24"))
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_stream_names_its_call_once_and_says_what_the_whole_says(client):
    request = asked("What is 374 + 589?")
    [whole] = client.chat.completions.create(**request).choices[0].message.tool_calls
    choices = [chunk.choices[0] for chunk in client.chat.completions.create(**request, stream=True)]
    first, *later = [call for c in choices for call in c.delta.tool_calls or ()]
    assert first.id
    assert (first.type, first.function.name) == ("function", whole.function.name)
    assert all((call.id, call.type, call.function.name) == (None,) * 3 for call in later)
    assert len(later) > 1
    joined = "".join(call.function.arguments for call in (first, *later))
    assert joined == whole.function.arguments
    assert {call.index for call in later} == {0}
    assert [c.finish_reason for c in choices if c.finish_reason] == ["tool_calls"]


def test_a_limit_inside_a_call_is_no_tool_call(client):
    request = asked("What is the weather in Osaka?")
    usage = client.chat.completions.create(**request).usage
    for cut in (2, 4, 6):
        limit = usage.completion_tokens - cut
        [choice] = client.chat.completions.create(**request, max_tokens=limit).choices
        assert choice.finish_reason == "length"
        assert "<" not in (choice.message.content or "")
        for call in choice.message.tool_calls or ():
            assert '{"city": "Osaka"}'.startswith(call.function.arguments)


def test_without_leave_to_call_there_are_no_calls(client):
    request = asked("What is the weather in Osaka?", tool_choice="none")
    [choice] = client.chat.completions.create(**request).choices
    assert choice.message.tool_calls is None
    assert choice.finish_reason == "stop"
