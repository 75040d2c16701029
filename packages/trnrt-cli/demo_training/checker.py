"""Judges answers to the test prompts: texts and calls exactly, haikus and JSON by form."""

import json
import re
from dataclasses import dataclass
from typing import Any

_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_ARGUMENT = re.compile(
    r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>(?=\s*(?:<arg_key>|$))", re.DOTALL
)
_LINE_SYLLABLES = ((3, 9), (5, 9), (3, 8))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client sees of one assistant message.

    `calls` are (name, arguments) pairs.
    """

    content: str
    reasoning: str = ""
    calls: tuple[tuple[str, dict[str, Any]], ...] = ()


def parse_answer(message: dict[str, Any]) -> Answer:
    """Read an OpenAI message; calls the server left in the content are taken from there."""
    content = message.get("content") or ""
    calls = [
        (call["function"]["name"], json.loads(call["function"]["arguments"] or "{}"))
        for call in message.get("tool_calls") or ()
    ]
    for inner in _CALL.findall(content):
        name, *rest = re.split(r"(?=<arg_key>)", inner, maxsplit=1)
        calls.append((name.strip(), dict(_ARGUMENT.findall(rest[0] if rest else ""))))
    reasoning = message.get("reasoning_content") or ""
    return Answer(_CALL.sub("", content).strip(), reasoning, tuple(calls))


def complaint(expect: dict[str, Any], answer: Answer) -> str | None:
    """Say what is wrong with an answer, or None."""
    if expect["kind"] == "call":
        wanted = ((expect["name"], expect["arguments"]),)
        return None if answer.calls == wanted else f"calls are {answer.calls}"
    if answer.calls:
        return f"called {answer.calls}"
    if expect["kind"] == "equals":
        return None if answer.content == expect["text"] else "text differs"
    if expect["kind"] == "json":
        return _json_complaint(expect["object"], answer.content)
    return haiku_complaint(answer.content, topic=expect["topic"])


def _json_complaint(wanted: dict[str, Any], text: str) -> str | None:
    try:
        value = json.loads(text)
    except ValueError:
        return "not JSON"
    if value != wanted or [type(v) for _, v in sorted(value.items())] != [
        type(v) for _, v in sorted(wanted.items())
    ]:
        return "another object"
    return None


def haiku_complaint(text: str, *, topic: str) -> str | None:
    """A haiku is three short lines, the middle one not the shortest, that name the topic."""
    lines = text.split("\n")
    if len(lines) != len(_LINE_SYLLABLES):
        return f"{len(lines)} lines"
    if not re.search(rf"\b{re.escape(topic)}\b", text, re.IGNORECASE):
        return "topic not named"
    for line, (low, high) in zip(lines, _LINE_SYLLABLES, strict=True):
        if not low <= count_syllables(line) <= high:
            return f"line of {count_syllables(line)} syllables: {line}"
    return None


def count_syllables(line: str) -> int:
    """Estimate: groups of vowels, a mute final e not counted."""
    total = 0
    for word in re.findall(r"[a-z]+", line.lower()):
        groups = len(re.findall(r"[aeiouy]+", word))
        if word.endswith("e") and not word.endswith(("le", "ee")) and groups > 1:
            groups -= 1
        total += max(1, groups)
    return total
