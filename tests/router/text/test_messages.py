"""Messages of every legal shape come out alike; the others are refused naming the field."""

import pytest

from trnrt_router.errors import InvalidRequest
from trnrt_router.text.messages import normalize_messages, normalize_tools


def call(arguments=None, **fields):
    function = {"name": "f"} if arguments is ... else {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "c", "function": function, **fields}]}


def arguments_of(message):
    [normal] = normalize_messages([message])
    return normal["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize("empty", [None, "", "  ", "null", "{}", {}, ...])
def test_every_spelling_of_no_arguments_is_an_empty_mapping(empty):
    assert arguments_of(call(empty)) == {}


def test_argument_text_becomes_a_mapping_in_the_given_order():
    arguments = arguments_of(call('{"z": 1, "a": null, "big": 12345678901234567891}'))
    assert list(arguments.items()) == [("z", 1), ("a", None), ("big", 12345678901234567891)]


def test_developer_is_system_and_reasoning_has_one_name():
    messages = normalize_messages(
        [
            {"role": "developer", "content": "a"},
            {"role": "assistant", "content": "b", "reasoning": "r"},
            {"role": "assistant", "reasoning": "x", "reasoning_content": "y"},
            {"role": "assistant", "content": None, "reasoning_content": None},
        ]
    )
    assert messages == [
        {"role": "system", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "r"},
        {"role": "assistant", "content": "", "reasoning_content": "y"},
        {"role": "assistant", "content": ""},
    ]


def test_content_parts_are_joined():
    parts = [{"type": "text", "text": "a "}, "b", {"type": "refusal", "refusal": "c"}]
    assert normalize_messages([{"role": "user", "content": parts}])[0]["content"] == "a bc"


def test_what_an_sdk_dumps_back_is_accepted():
    message = {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "audio": None,
        "function_call": None,
        "tool_calls": None,
        "annotations": [],
    }
    assert normalize_messages([message]) == [{"role": "assistant", "content": ""}]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ({"role": "user"}, "messages"),
        (["hi"], "messages.0"),
        ([{"content": "x"}], "messages.0.role"),
        ([{"role": "critic", "content": "x"}], "messages.0.role"),
        ([{"role": ["user"], "content": "x"}], "messages.0.role"),
        ([{"role": "user", "content": "x"}, {"role": "user"}], "messages.1.content"),
        ([{"role": "user", "content": None}], "messages.0.content"),
        ([{"role": "user", "content": 7}], "messages.0.content"),
        ([{"role": "user", "content": [7]}], "messages.0.content.0"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages.0.content.0.text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages.0.content.0.type"),
        ([{"role": "user", "content": "x", "name": 7}], "messages.0.name"),
        ([{"role": "assistant", "reasoning": {}}], "messages.0.reasoning"),
        ([{"role": "assistant", "function_call": {}}], "messages.0.function_call"),
        ([{"role": "assistant", "tool_calls": {}}], "messages.0.tool_calls"),
        ([{"role": "assistant", "tool_calls": [1]}], "messages.0.tool_calls.0"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages.0.tool_calls.0.function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {}}]}],
            "messages.0.tool_calls.0.function.name",
        ),
        ([call(type="custom")], "messages.0.tool_calls.0.type"),
        *(
            ([call(arguments)], "messages.0.tool_calls.0.function.arguments")
            for arguments in ("{broken", "[1]", '"x"', "7", 7, [], '{"a": NaN}', "[" * 100_000)
        ),
        ([{"role": "tool", "content": "x", "tool_call_id": 1}], "messages.0.tool_call_id"),
    ],
)
def test_a_wrong_shape_names_its_field(messages, param):
    with pytest.raises(InvalidRequest) as refused:
        normalize_messages(messages)
    assert refused.value.param == param
    assert str(refused.value).startswith(param)


def test_tools_pass_through_unchanged():
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"z": 1}, "strict": True}}
    ]
    assert normalize_tools(tools) is tools
    assert normalize_tools([]) is normalize_tools(None) is None


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ({}, "tools"),
        (["f"], "tools.0"),
        ([{"type": "web_search"}], "tools.0.type"),
        ([{"type": "function"}], "tools.0.function"),
        ([{"function": {"name": " "}}], "tools.0.function.name"),
        ([{"function": {"name": "f", "parameters": []}}], "tools.0.function.parameters"),
    ],
)
def test_a_wrong_tool_names_its_field(tools, param):
    with pytest.raises(InvalidRequest) as refused:
        normalize_tools(tools)
    assert refused.value.param == param
