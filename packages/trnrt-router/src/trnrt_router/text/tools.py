"""The tools of a request as the output parser looks them up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trnrt_router.text.parameter_types import ParameterTypes

# Blanks that may stand around a name: more of them are no layout.
MAX_NAME_BLANKS = 64


@dataclass(frozen=True, slots=True)
class Tool:
    """A declared tool."""

    name: str
    parameters: ParameterTypes


class Tools:
    """Declared tools by name.

    Args:
        tools: as OpenAI spells them, already checked (`normalize_tools`).
    """

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        functions = [tool["function"] for tool in tools]
        self._by_name = {
            function["name"].strip(): Tool(
                function["name"], ParameterTypes(function.get("parameters"))
            )
            for function in functions
        }
        self._max_chars = MAX_NAME_BLANKS + max(map(len, self._by_name), default=0)

    def find(self, text: str) -> Tool | None:
        """Return the tool whose name this is, blanks around it aside."""
        return self._by_name.get(text.strip())

    def may_become_name(self, text: str) -> bool:
        """Whether more text can still make this the name of a tool."""
        if len(text) > self._max_chars:
            return False
        begun = text.lstrip()
        return begun.rstrip() in self._by_name or any(
            name.startswith(begun) for name in self._by_name
        )
