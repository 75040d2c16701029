"""Tool calls put together from a stream's deltas, and checked while they are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trnrt_router.text.visible import CallDelta


@dataclass(frozen=True, slots=True)
class Call:
    """One joined call."""

    name: str
    arguments: str

    @property
    def decoded(self) -> Any:
        """The arguments; raises ValueError where they are not exactly one JSON object."""
        value = json.loads(self.arguments, object_pairs_hook=_without_repeats)
        if not isinstance(value, dict):
            raise ValueError(f"{self.arguments!r} is no object")
        return value


def join_calls(steps: Iterable[Sequence[CallDelta]]) -> tuple[Call, ...]:
    """Join the deltas of every step.

    Raises:
        ValueError: a name comes not once and whole with its call's first delta, an index does not
            count up, or a delta of an earlier call follows a later one.
    """
    calls: list[tuple[str, list[str]]] = []
    for delta in (delta for step in steps for delta in step):
        if delta.name is not None:
            if delta.index != len(calls):
                raise ValueError(f"call {len(calls)} has the index {delta.index}")
            calls.append((delta.name, []))
        if delta.index != len(calls) - 1:
            raise ValueError(f"index {delta.index} while call {len(calls) - 1} is read")
        if not delta.name and not delta.arguments:
            raise ValueError(f"a delta of call {delta.index} says nothing")
        delta.arguments.encode()
        calls[delta.index][1].append(delta.arguments)
    return tuple(Call(name, "".join(pieces)) for name, pieces in calls)


def is_same_json(one: Any, other: Any) -> bool:
    """Compare decoded JSON by value and type: 1 is not 1.0, true is not 1."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"a name is repeated in {pairs}")
    return found
