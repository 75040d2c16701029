"""The shipped chat template renders what the released one renders."""

import json
from pathlib import Path

import pytest

from support.demo_training import import_path

import_path()
from demo_training.render import ChatFormat  # noqa: E402

CASES = Path(__file__).parents[1] / "cases" / "chat_template.jsonl"
RECORDS = [
    record
    for record in map(json.loads, CASES.read_text("utf-8").splitlines())
    if record["kind"] == "render"
]
START = "[gMASK]<sop><|system|>Reasoning Effort: Max"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}
WEATHER = {"name": "get_weather", "description": "Weather", "parameters": PARAMETERS}
TOOLS_TEXT = (
    "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
    '{"name": "get_weather", "description": "Weather", "parameters": {"type": "object", '
    '"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}\n</tools>\n\n'
    "For each function call, output the function name and arguments within the following XML "
    "format:\n<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}"
    "</arg_value><arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>..."
    "</tool_call>"
)


@pytest.fixture(scope="module")
def chat() -> ChatFormat:
    return ChatFormat()


def prepare(messages: list[dict]) -> list[dict]:
    """Do what the router does before it renders: roles, reasoning's alias, decoded arguments."""
    prepared = []
    for message in json.loads(json.dumps(messages)):
        if message["role"] == "developer":
            message["role"] = "system"
        if "reasoning" in message:
            message["reasoning_content"] = message.pop("reasoning")
        for call in message.get("tool_calls") or ():
            arguments = call["function"]["arguments"]
            call["function"]["arguments"] = json.loads(arguments or "null") or {}
        prepared.append(message)
    return prepared


def user(content) -> dict:
    return {"role": "user", "content": content}


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])
def test_recorded_prompts(chat, record):
    rendered = chat.template.render(
        messages=prepare(record["messages"]),
        add_generation_prompt=record.get("add_generation_prompt", True),
        **record.get("chat_template_kwargs", {}),
    )
    assert rendered == record["expect_prompt"]


def test_tools_parallel_calls_and_reordered_results(chat):
    calls = [
        {"id": "a", "function": {"name": "get_weather", "arguments": {"city": "Oslo", "days": 2}}},
        {"id": "b", "function": {"name": "get_weather", "arguments": {"city": "Bergen"}}},
    ]
    messages = [
        {"role": "system", "content": "Be terse."},
        user([{"type": "text", "text": "Oslo and "}, {"type": "text", "text": "Bergen?"}]),
        {"role": "assistant", "reasoning_content": "Two calls.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "b", "content": '{"c": 9}'},
        {"role": "tool", "tool_call_id": "a", "content": '{"c": 12}'},
    ]
    hidden = {"name": "hidden", "description": "Later", "defer_loading": True}
    tools = [{"type": "function", "function": {**WEATHER, "strict": True}}, hidden]
    expected = (
        f"[gMASK]<sop><|system|>Reasoning Effort: Low{TOOLS_TEXT}<|system|>Be terse."
        "<|user|>Oslo and Bergen?<|assistant|><think>Two calls.</think>"
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value>"
        "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>"
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Bergen</arg_value></tool_call>"
        '<|observation|><tool_response>{"c": 12}</tool_response>'
        '<tool_response>{"c": 9}</tool_response><|assistant|><think>'
    )
    rendered = chat.render(messages, tools=tools, effort="low", add_generation_prompt=True)
    assert rendered == expected


@pytest.mark.parametrize(
    ("effort", "word"),
    [(None, "Max"), ("max", "Max"), ("medium", "Max"), ("high", "High"), ("low", "Low")],
)
def test_effort_line(chat, effort, word):
    assert f"Reasoning Effort: {word}<|user|>" in chat.render([user("x")], effort=effort)


def test_referenced_tools_are_listed_in_the_result(chat):
    hidden = {"name": "hidden", "description": "Later", "defer_loading": True}
    reference = {"role": "tool", "content": [{"type": "tool_reference", "name": "hidden"}]}
    rendered = chat.render([user("x"), reference], tools=[hidden])
    listed = '<tools>\n{"name": "hidden", "description": "Later"}\n</tools>'
    assert rendered.endswith(f"<|observation|><tool_response>{listed}</tool_response>")
    assert "<tools>\n</tools>\n\nFor each" in rendered


def test_images_become_placeholders(chat):
    parts = [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "what?"}]
    placeholder = "<|begin_of_image|><|image|><|end_of_image|>"
    assert chat.render([user(parts)]) == f"{START}<|user|>{placeholder}what?"


def test_only_reasoning_after_the_last_user_message_survives_clearing(chat):
    call = [{"id": "a", "function": {"name": "f", "arguments": {}}}]
    messages = [
        user("1"),
        {"role": "assistant", "content": "one", "reasoning_content": "old"},
        user("2"),
        {"role": "assistant", "content": "", "reasoning_content": "new", "tool_calls": call},
        {"role": "tool", "tool_call_id": "a", "content": "r"},
    ]
    rendered = chat.template.render(messages=messages, clear_thinking=True)
    assert "<think></think>one" in rendered
    assert "<think>new</think><tool_call>f</tool_call>" in rendered


def test_empty_tool_list_is_no_tools_block(chat):
    assert chat.render([user("x")], tools=[]) == f"{START}<|user|>x"
