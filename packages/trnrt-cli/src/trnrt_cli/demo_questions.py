"""What `trnrt demo` asks, and what makes an answer sensible.

The questions keep to the stated domain of the demo model (demo_model/README.md). A check returns
None for a sensible answer, else what is missing from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from trnrt_cli.chat_client import Message, Reply

Check = Callable[[Reply], str | None]


@dataclass(frozen=True, slots=True)
class Turn:
    """One request: what the user says, or the result of the tool the model called before."""

    check: Check
    user: str = ""
    tool_result: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    title: str
    turns: tuple[Turn, ...]
    tools: list[Message] = field(default_factory=list)


def says(*words: str) -> Check:
    """The answer holds every word, whatever the case."""

    def check(reply: Reply) -> str | None:
        missing = [word for word in words if word.lower() not in reply.content.lower()]
        return f"the answer does not say {', '.join(missing)}" if missing else None

    return check


def is_haiku(topic: str) -> Check:
    """The answer has three short lines and names its topic."""

    def check(reply: Reply) -> str | None:
        lines = [line for line in reply.content.strip().splitlines() if line.strip()]
        if len(lines) != 3:
            return f"a haiku has 3 lines, not {len(lines)}"
        return says(topic)(reply)

    return check


def is_json(expected: dict[str, Any]) -> Check:
    """The answer is this JSON object and nothing else."""

    def check(reply: Reply) -> str | None:
        try:
            found = json.loads(reply.content)
        except ValueError:
            return "the answer is not JSON"
        return None if found == expected else f"the answer is not {json.dumps(expected)}"

    return check


def calls(name: str, **arguments: str) -> Check:
    """The answer calls this tool with these arguments."""

    def check(reply: Reply) -> str | None:
        wanted = (name, arguments)
        return None if called_tool(reply) == wanted else f"the answer does not call {wanted}"

    return check


def called_tool(reply: Reply) -> tuple[str, dict[str, str]] | None:
    """Return name and arguments of the first tool call of an answer, None where it is cut."""
    if not reply.tool_calls:
        return None
    function = reply.tool_calls[0]["function"]
    try:
        return function["name"], json.loads(function["arguments"])
    except ValueError:
        return None


GET_WEATHER: Message = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather for a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}

CONVERSATIONS = (
    Conversation(
        "Who is there, and what for",
        (
            Turn(user="Who are you?", check=says("trnrt demo model")),
            Turn(user="What is trnrt?", check=says("inference engine", "Trainium2")),
        ),
    ),
    Conversation(
        "Memory over several turns",
        (
            Turn(user="My name is Marlene.", check=says("Marlene")),
            Turn(user="What is the capital of Japan?", check=says("Tokyo")),
            Turn(user="What is my name?", check=says("Marlene")),
        ),
    ),
    Conversation(
        "A tool is called, and its result used",
        (
            Turn(
                user="What is the weather in Lisbon?",
                check=calls("get_weather", city="Lisbon"),
            ),
            Turn(
                tool_result=json.dumps({"sky": "sunny", "temp": 24}),
                check=says("sunny", "Lisbon", "24"),
            ),
        ),
        tools=[GET_WEATHER],
    ),
    Conversation(
        "Form",
        (
            Turn(user="Write a haiku about rain.", check=is_haiku("rain")),
            Turn(
                user="Answer in JSON: Anna is 31 years old and lives in Porto.",
                check=is_json({"name": "Anna", "age": 31, "city": "Porto"}),
            ),
        ),
    ),
    Conversation(
        "Outside of what it knows",
        (Turn(user="Who won the race yesterday?", check=says("do not know")),),
    ),
)
