"""Keeps the test prompts out of the training data.

`prompts.json` holds two lists: wordings (whole questions, for what is known by heart) and values
(names, cities, words and numbers, for what is copied). A dialogue with either is not drawn.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from demo_training.exchange import Message

PROMPTS_PATH = Path(__file__).parent / "prompts.json"
_VALUE = re.compile(r"\d+:\d+|\d+|[^\W\d_]+")


def normalise(text: str) -> str:
    """Lower case, letters and digits only, one space between words."""
    return " ".join(re.findall(r"[^\W_]+", text.lower()))


def values_in(text: str) -> set[str]:
    """Words, numbers and clock times of a text, lower case."""
    return set(_VALUE.findall(text.lower()))


@dataclass(frozen=True, slots=True)
class Exclusions:
    wordings: tuple[str, ...]
    values: frozenset[str]

    @classmethod
    def load(cls, path: Path = PROMPTS_PATH) -> Self:
        held_out = json.loads(path.read_text("utf-8"))["held_out"]
        wordings = tuple(f" {normalise(text)} " for text in held_out["wordings"])
        return cls(wordings, frozenset(value.lower() for value in held_out["values"]))

    def allows(self, messages: list[Message]) -> bool:
        """Whether no message holds an excluded wording (users) or value (anybody)."""
        return not any(self._is_hit(message) for message in messages)

    def _is_hit(self, message: Message) -> bool:
        texts = [str(message.get("content") or ""), str(message.get("reasoning_content") or "")]
        for call in message.get("tool_calls", ()):
            texts += [str(value) for value in call["function"]["arguments"].values()]
        if any(values_in(text) & self.values for text in texts):
            return True
        if message["role"] != "user":
            return False
        user = f" {normalise(texts[0])} "
        return any(wording in user for wording in self.wordings)
