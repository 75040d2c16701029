"""What a client may see of a choice, gathered between two deltas."""

from __future__ import annotations

import msgspec

from trnrt_router.text.markup import Section
from trnrt_router.text.stop import StopMatcher


class CallDelta(msgspec.Struct, frozen=True, gc=False):
    """What became known of one tool call.

    Fields:
        index: 0 for the first call of the answer.
        name: with the call's first delta only, whole.
        arguments: the next piece of the arguments' JSON text.
    """

    index: int
    name: str | None
    arguments: str


class Visible:
    """Collects reasoning, content up to a stop string, and tool calls.

    Attributes:
        stop: acts on the content alone; a call ends what it may have begun to match.
    """

    def __init__(self, stop: StopMatcher) -> None:
        self.stop = stop
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._names: dict[int, str] = {}
        self._arguments: dict[int, list[str]] = {}

    def add(self, section: Section, text: str) -> None:
        """Add text of a section."""
        if section is Section.REASONING:
            self._reasoning.append(text)
        else:
            self._content.append(self.stop.push(text))

    def begin_call(self, index: int, name: str) -> None:
        """Start a call."""
        self._content.append(self.stop.finish())
        self._names[index] = name
        self._arguments[index] = []

    def add_arguments(self, index: int, text: str) -> None:
        """Add to the arguments of a call."""
        if text:
            self._arguments.setdefault(index, []).append(text)

    def finish(self) -> None:
        """Add what the stop matcher holds back: nothing follows."""
        self._content.append(self.stop.finish())

    def take(self) -> tuple[str, str, tuple[CallDelta, ...]]:
        """Return (reasoning, content, calls) added since the last call of `take`."""
        reasoning, content = "".join(self._reasoning), "".join(self._content)
        self._reasoning.clear()
        self._content.clear()
        return reasoning, content, self._take_calls() if self._arguments else ()

    def _take_calls(self) -> tuple[CallDelta, ...]:
        calls = tuple(
            CallDelta(index, self._names.get(index), "".join(pieces))
            for index, pieces in self._arguments.items()
        )
        self._names.clear()
        self._arguments.clear()
        return calls
