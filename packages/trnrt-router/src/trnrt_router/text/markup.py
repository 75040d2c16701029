"""The words of a model family's turn format, and the sections they divide its output into."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from trnrt_router.errors import ConfigError


class Section(StrEnum):
    """What a piece of output is."""

    REASONING = "reasoning"
    CONTENT = "content"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMarkup:
    """How a tool call is written: `<tool_call>NAME`, pairs of key and value, `</tool_call>`."""

    call_open: str
    call_close: str
    key_open: str
    key_close: str
    value_open: str
    value_close: str

    @property
    def tags(self) -> tuple[str, ...]:
        """All of them."""
        return (
            *(self.call_open, self.call_close),
            *(self.key_open, self.key_close),
            *(self.value_open, self.value_close),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Markup:
    """Which control tokens a model writes, and what each one means for the reader.

    Fields:
        think_open, think_close: border the reasoning.
        turn_tokens: role and end tokens. They stop a turn and are never part of its text, also
            where a model without token ids spells one at the very end.
        hidden_tokens: other control tokens without a text of their own.
        calls: border the parts of a tool call.
    """

    think_open: str
    think_close: str
    turn_tokens: tuple[str, ...]
    hidden_tokens: tuple[str, ...] = ()
    calls: CallMarkup

    @property
    def tags(self) -> tuple[str, ...]:
        """Tokens that move the output parser from reasoning to content."""
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
    calls=CallMarkup(
        call_open="<tool_call>",
        call_close="</tool_call>",
        key_open="<arg_key>",
        key_close="</arg_key>",
        value_open="<arg_value>",
        value_close="</arg_value>",
    ),
)

# By the `model_type` of a checkpoint's config.json. The output parser is the same for all of
# them: a family is the words it writes.
FAMILIES: dict[str, Markup] = {"glm5_next": GLM, "glm5_next_text": GLM}
DEFAULT_FAMILY = "glm5_next"


class _Config(msgspec.Struct):
    model_type: str = DEFAULT_FAMILY


def read_markup(model_dir: str | Path) -> Markup:
    """Return the markup of the family a model folder belongs to.

    A folder without config.json (the text side alone) is of the default family.

    Raises:
        ConfigError: config.json cannot be read, or its family has no markup here.
    """
    path = Path(model_dir) / "config.json"
    if not path.exists():
        return FAMILIES[DEFAULT_FAMILY]
    try:
        family: str = msgspec.json.decode(path.read_bytes(), type=_Config).model_type
    except (OSError, ValueError, RecursionError, msgspec.DecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    if family not in FAMILIES:
        names = ", ".join(FAMILIES)
        raise ConfigError(f"{path}: no markup for model_type {family!r}; known are {names}")
    return FAMILIES[family]
