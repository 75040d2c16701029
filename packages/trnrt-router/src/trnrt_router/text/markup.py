"""The words of a model family's turn format, and the sections they divide its output into."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Section(StrEnum):
    """What a piece of output is."""

    REASONING = "reasoning"
    CONTENT = "content"


@dataclass(frozen=True, slots=True, kw_only=True)
class Markup:
    """Which control tokens a model writes, and what each one means for the reader.

    Fields:
        think_open, think_close: border the reasoning.
        turn_tokens: role and end tokens. They stop a turn and are never part of its text, also
            where a model without token ids spells one at the very end.
        hidden_tokens: other control tokens without a text of their own.
    """

    think_open: str
    think_close: str
    turn_tokens: tuple[str, ...]
    hidden_tokens: tuple[str, ...] = ()

    @property
    def tags(self) -> tuple[str, ...]:
        """Tokens that move the output parser from one section to the next."""
        return (self.think_open, self.think_close)


GLM = Markup(
    think_open="<think>",
    think_close="</think>",
    turn_tokens=(
        "<|endoftext|>",
        "<eop>",
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|observation|>",
    ),
    hidden_tokens=("[gMASK]", "<sop>", "[MASK]", "[sMASK]"),
)
