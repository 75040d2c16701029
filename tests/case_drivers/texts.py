"""What the drivers of text kinds share: cutting a text, joining a stream, comparing results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from support.calls import Call, is_same_json, join_calls
from trnrt_router.text.choice import ChoiceDelta, TextStream
from trnrt_router.text.markup import Section
from trnrt_router.text.tools import Tools


@dataclass(frozen=True, slots=True)
class Answer:
    """A joined stream."""

    reasoning: str
    content: str
    finish_reason: str | None
    calls: tuple[Call, ...] = ()


def join(deltas: Sequence[ChoiceDelta]) -> Answer:
    """Join deltas and check what holds for every stream, whatever it says."""
    for delta in deltas:
        (delta.reasoning + delta.content).encode()  # every delta is valid text
    return Answer(
        "".join(delta.reasoning for delta in deltas),
        "".join(delta.content for delta in deltas),
        deltas[-1].finish_reason,
        join_calls(delta.tool_calls for delta in deltas),
    )


def stream_options(record: dict[str, Any]) -> dict[str, Any]:
    """Return what a record of a stream kind says about its reader, as keyword arguments."""
    stop = record.get("stop") or []
    return {
        "starts_in": Section(record.get("start_in", "content")),
        "stop": [stop] if isinstance(stop, str) else stop,
        "include_stop_str": record.get("include_stop_str_in_output", False),
        "tools": tools_of(record),
    }


def tools_of(record: dict[str, Any]) -> Tools | None:
    """Return what a record's model may call."""
    functions = record.get("tools")
    return Tools([{"function": function} for function in functions]) if functions else None


def allowed_answers(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a record of a stream kind expects or accepts; `text` is the content."""
    allowed = [record["expect"], *record.get("accept_instead", [])]
    if "*" in allowed:
        return [{}]
    return [
        {("content" if name == "text" else name): value for name, value in expect.items()}
        for expect in allowed
    ]


def read_text(pieces: Sequence[str], *, ended: str, **options: Any) -> Answer:
    """Feed text pieces to a fresh stream; check that nothing follows a stop string."""
    stream = TextStream(**options)
    deltas = []
    for piece in pieces:
        was_stopped = stream.matched_stop is not None
        stream.push(piece)
        deltas.append(stream.take())
        if was_stopped and deltas[-1] != ChoiceDelta():
            raise ValueError(f"{deltas[-1]} came after the stop string")
    stream.finish()
    deltas.append(stream.take(finish_reason=stream.finish_reason(ended)))
    return join(deltas)


def every_cut(raw: str, wanted: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the cuts that `also_try` names, as (label, pieces)."""
    for name in wanted:
        if name == "every_char":
            yield name, list(raw)
        elif name == "every_two_way_split":
            for middle in range(len(raw) + 1):
                yield f"{name} at {middle}", [raw[:middle], raw[middle:]]
        else:
            raise ValueError(f"unknown way to cut a text: {name!r}")


def differences(answer: Answer, expect: dict[str, Any], compare: dict[str, str]) -> str:
    """Say how an answer differs from what a record expects, nothing when it does not."""
    found = []
    for field in ("reasoning", "content", "finish_reason"):
        if field not in expect or expect[field] == "*":
            continue
        got, wanted = getattr(answer, field), expect[field]
        if field != "finish_reason":
            got, wanted = got or "", wanted or ""
            if compare.get(field) == "strip":
                got, wanted = got.strip(), wanted.strip()
        if got != wanted:
            found.append(f"{field} is {got!r}, not {wanted!r}")
    wanted_calls = expect.get("tool_calls", [])
    if len(answer.calls) != len(wanted_calls):
        found.append(f"calls are {answer.calls}, not {wanted_calls}")
    for call, wanted in zip(answer.calls, wanted_calls, strict=False):
        if call.name != wanted["name"] or not _has_arguments(call, wanted):
            found.append(f"call {call} is not {wanted}")
    return "; ".join(found)


def _has_arguments(call: Call, wanted: dict[str, Any]) -> bool:
    if "arguments_text_prefix_of" in wanted:
        text = "".join(wanted["arguments_text_prefix_of"].split())
        return text.startswith("".join(call.arguments.split()))
    return is_same_json(call.decoded, wanted["arguments"])
