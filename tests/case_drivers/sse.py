"""An event stream as the client saw it, and the checks the case files make on it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from case_drivers.operators import all_hold, find, holds

Entry = dict[str, Any]


@dataclass(frozen=True, slots=True)
class EventLog:
    """The whole text of a stream and how long its headers took."""

    text: str
    headers_s: float

    @property
    def data(self) -> list[str]:
        """Payloads of the data events, in order."""
        lines = self.text.split("\n")
        return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]

    @property
    def objects(self) -> list[Any]:
        return [json.loads(payload) for payload in self.data if payload != "[DONE]"]

    @property
    def chunks(self) -> list[Any]:
        """Data objects that are no error."""
        return [item for item in self.objects if "error" not in item]

    def choices(self) -> dict[int, list[Entry]]:
        """The choice entries of all chunks by their index."""
        found = defaultdict(list)
        for chunk in self.chunks:
            for choice in chunk.get("choices", []):
                found[choice["index"]].append(choice)
        return dict(found)

    def deltas(self) -> dict[int, list[Entry]]:
        return {
            index: [choice["delta"] for choice in choices if "delta" in choice]
            for index, choices in self.choices().items()
        }

    def tool_deltas(self) -> dict[tuple[int, int], list[Entry]]:
        found = defaultdict(list)
        for index, deltas in self.deltas().items():
            for delta in deltas:
                for call in delta.get("tool_calls") or []:
                    found[index, call["index"]].append(call)
        return dict(found)

    def logprobs(self) -> list[Entry]:
        entries = [choice.get("logprobs") for choice in self.choices().get(0, [])]
        return [token for entry in entries if entry for token in entry["content"] or []]

    def finish_reasons(self) -> list[str]:
        every = [choice for choices in self.choices().values() for choice in choices]
        return [choice["finish_reason"] for choice in every if choice.get("finish_reason")]


def check(log: EventLog, entry: Entry) -> bool:
    """Whether the stream satisfies one `sse` expectation.

    Raises:
        ValueError: the check is not known.
    """
    if entry["sse"] not in _CHECKS:
        raise ValueError(f"unknown sse check {entry['sse']!r}")
    return _CHECKS[entry["sse"]](log, entry)


def _at_path(items: Iterable[Any], entry: Entry) -> bool:
    return all(all_hold(item, entry["path"], entry["op"], entry.get("value")) for item in items)


def _some(items: list[Any], entry: Entry) -> bool:
    return bool(items) and _at_path(items, entry)


def _compare(value: Any, entry: Entry) -> bool:
    return holds(value, entry["op"], entry.get("value"))


def _chunk(log: EventLog, entry: Entry) -> bool:
    chunk = log.chunks[entry["index"]]
    if entry["op"] == "eq_expr":
        return all(value == _sum_of(chunk, entry["value"]) for value in find(chunk, entry["path"]))
    return all_hold(chunk, entry["path"], entry["op"], entry.get("value"))


def _sum_of(chunk: Any, expression: str) -> int:
    """Evaluate `a.b + c.d`."""
    return sum(find(chunk, path)[0] for path in re.split(r"\s*\+\s*", expression))


def _joined_logprobs(log: EventLog, entry: Entry) -> bool:
    tokens, wanted = [token["token"] for token in log.logprobs()], entry["value"]
    return tokens == wanted or (bool(entry.get("optional_last")) and tokens == wanted[:-1])


def _joined_arguments(log: EventLog, entry: Entry) -> bool:
    calls = log.tool_deltas().get((0, entry.get("index", 0)), [])
    return _compare("".join(find(c, "function.arguments")[0] or "" for c in calls), entry)


def _joined(field: str) -> Callable[[EventLog, Entry], bool]:
    def compare(log: EventLog, entry: Entry) -> bool:
        deltas = log.deltas().get(entry.get("index", 0), [])
        return _compare("".join(delta.get(field) or "" for delta in deltas), entry)

    return compare


def _is_well_formed(log: EventLog) -> bool:
    """Every event is comment lines or one data line with JSON, closed by a blank line."""
    if log.text and not log.text.endswith("\n\n"):
        return False
    for block in log.text.split("\n\n")[:-1]:
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        if len(lines) > 1 or any(not line.startswith("data: ") for line in lines):
            return False
    try:
        return log.objects is not None
    except ValueError:
        return False


def _comments_before_data(log: EventLog) -> int:
    before = log.text.partition("data: ")[0]
    return sum(line.startswith(":") for line in before.split("\n"))


def _finish_is_last(log: EventLog) -> bool:
    return all(
        [bool(choice.get("finish_reason")) for choice in choices].index(True) == len(choices) - 1
        for choices in log.choices().values()
    )


def _no_finish_before_error(log: EventLog) -> bool:
    has_error = any("error" in item for item in log.objects)
    return has_error and not log.finish_reasons() and "[DONE]" not in log.data


_CHECKS: dict[str, Callable[[EventLog, Entry], bool]] = {
    "last_data_is": lambda log, e: bool(log.data) and log.data[-1] == e["value"],
    "every_chunk": lambda log, e: _some(log.chunks, e),
    "every_chunk_choice": lambda log, e: _some(
        [choice for choices in log.choices().values() for choice in choices], e
    ),
    "chunk": _chunk,
    "count_chunks_with": lambda log, e: e["value"]
    == sum(holds(find(chunk, e["path"])[0], e["op"]) for chunk in log.chunks),
    "first_delta": lambda log, e: _some([d[0] for d in log.deltas().values()], e),
    "every_later_delta": lambda log, e: _at_path(
        [delta for deltas in log.deltas().values() for delta in deltas[1:]], e
    ),
    "tool_delta_first": lambda log, e: _some([d[0] for d in log.tool_deltas().values()], e),
    "tool_delta_later": lambda log, e: _at_path(
        [delta for deltas in log.tool_deltas().values() for delta in deltas[1:]], e
    ),
    "joined_arguments": _joined_arguments,
    "joined_content": _joined("content"),
    "joined_reasoning": _joined("reasoning_content"),
    "joined_logprobs_tokens": _joined_logprobs,
    "every_logprob": lambda log, e: _some(log.logprobs(), e),
    "finish_reasons": lambda log, e: _compare(log.finish_reasons(), e),
    "finish_reason_is_last_for_choice": lambda log, _: _finish_is_last(log),
    "no_finish_reason_before_error": lambda log, _: _no_finish_before_error(log),
    "choice_indices": lambda log, e: _compare(sorted(log.choices()), e),
    "comment_lines_before_first_data": lambda log, e: _compare(_comments_before_data(log), e),
    "some_data_has": lambda log, e: any(
        all_hold(item, e["path"], e["op"], e.get("value")) for item in log.objects
    ),
    "headers_within_s": lambda log, e: _compare(log.headers_s, e),
    "parse_ok": lambda log, _: _is_well_formed(log),
}
