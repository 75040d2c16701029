"""The comparison words of the case files, and dotted paths into JSON."""

from __future__ import annotations

import json
import re
from typing import Any

ABSENT = object()


def holds(value: Any, op: str, wanted: Any = None) -> bool:
    """Whether `value` satisfies one operator; `ABSENT` stands for a missing field.

    Raises:
        ValueError: the operator is not known.
    """
    if op not in _OPERATORS:
        raise ValueError(f"unknown op {op!r}")
    if value is ABSENT and op not in _TAKE_ABSENT:
        return False
    return bool(_OPERATORS[op](value, wanted))


def find(value: Any, path: str) -> list[Any]:
    """Return what a dotted path names; `*` takes all items, a missing field is `ABSENT`."""
    found = [value]
    for step in path.split("."):
        found = [item for value in found for item in _step(value, step)]
    return found


def all_hold(value: Any, path: str, op: str, wanted: Any = None) -> bool:
    """Whether every value at `path` satisfies the operator, and there is at least one."""
    found = find(value, path)
    return all(holds(item, op, wanted) for item in found or [ABSENT])


def strictly_equal(a: Any, b: Any) -> bool:
    """Compare JSON values without Python's `True == 1 == 1.0`."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(strictly_equal(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(strictly_equal, a, b))
    return type(a) is type(b) and bool(a == b)


def _step(value: Any, step: str) -> list[Any]:
    if step == "*":
        if isinstance(value, dict):
            return list(value.values())
        return list(value) if isinstance(value, list) else []
    if isinstance(value, dict):
        return [value.get(step, ABSENT)]
    if isinstance(value, list) and re.fullmatch(r"-?\d+", step):
        index = int(step)
        return [value[index] if -len(value) <= index < len(value) else ABSENT]
    return [ABSENT]


def _json_equal(text: Any, wanted: Any) -> bool:
    return strictly_equal(json.loads(text) if isinstance(text, str) else text, wanted)


def _is_valid_for(text: Any, schema: Any) -> bool:
    import jsonschema_rs

    try:
        value = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return False
    return jsonschema_rs.is_valid(schema, value)


_TAKE_ABSENT = {"absent", "present", "null_or_empty", "null_or_in", "not_contains", "ne"}
_OPERATORS = {
    "eq": lambda value, wanted: strictly_equal(value, wanted),
    "ne": lambda value, wanted: not strictly_equal(value, wanted),
    "in": lambda value, wanted: value in wanted,
    "le": lambda value, wanted: value <= wanted,
    "lt": lambda value, wanted: value < wanted,
    "ge": lambda value, wanted: value >= wanted,
    "gt": lambda value, wanted: value > wanted,
    "len": lambda value, wanted: len(value) == wanted,
    "present": lambda value, _: value is not ABSENT,
    "absent": lambda value, _: value is ABSENT,
    "not_null": lambda value, _: value is not None,
    "non_empty": lambda value, _: bool(value),
    "true": lambda value, _: value is True,
    "null_or_empty": lambda value, _: value is ABSENT or value in (None, "", [], {}),
    "null_or_in": lambda value, wanted: value is ABSENT or value is None or value in wanted,
    "subset_of": lambda value, wanted: all(item in wanted for item in value),
    "matches": lambda value, wanted: isinstance(value, str) and re.search(wanted, value),
    "contains": lambda value, wanted: wanted in value,
    "not_contains": lambda value, wanted: value is ABSENT or wanted not in value,
    "json_eq": _json_equal,
    "json_valid_for_schema": _is_valid_for,
}
