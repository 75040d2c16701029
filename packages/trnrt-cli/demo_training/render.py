"""Dialogue to token ids and loss weights, through the very template that is served."""

import json
import re
from pathlib import Path
from typing import Any

import jinja2
import jinja2.sandbox
from tokenizers import Tokenizer

from demo_training.exchange import Message, Sample

MODEL_DIR = Path(__file__).parents[1] / "src" / "trnrt_cli" / "demo_model"
CONTEXT_WEIGHT = 0.05

_ANSWER = re.compile(r"(?<=<\|assistant\|><think>).*?<\|(?:user|observation)\|>", re.DOTALL)


class ChatFormat:
    """The served chat template in an environment equal to transformers'."""

    def __init__(self, model_dir: Path = MODEL_DIR) -> None:
        env = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        env.filters["tojson"] = _tojson
        self.template = env.from_string((model_dir / "chat_template.jinja").read_text("utf-8"))

    def render(
        self,
        messages: list[Message],
        *,
        tools: list[Message] | None = None,
        effort: str | None = None,
        add_generation_prompt: bool = False,
    ) -> str:
        return self.template.render(
            messages=messages,
            tools=tools or None,
            reasoning_effort=effort,
            add_generation_prompt=add_generation_prompt,
        )

    def render_sample(self, sample: Sample) -> str:
        """Render a dialogue closed by `<|user|>`, the token that ends an answer."""
        text = self.render(sample.messages, tools=sample.tools, effort=sample.effort)
        return text + "<|user|>"


def split_targets(text: str, *, learns_history: bool) -> list[tuple[str, bool]]:
    """Cut a rendered dialogue into pieces: (text, whether the assistant wrote it).

    The role token that ends an answer belongs to the answer. Without `learns_history` only the
    answers after the last user message count.
    """
    pieces: list[tuple[str, bool]] = []
    cursor = 0
    # The closing <|user|> is the last one; the one before it opened the last exchange.
    last_user = text.rfind("<|user|>", 0, len(text) - 1)
    for answer in _ANSWER.finditer(text):
        if not learns_history and answer.start() < last_user:
            continue
        pieces.append((text[cursor : answer.start()], False))
        pieces.append((answer.group(), True))
        cursor = answer.end()
    pieces.append((text[cursor:], False))
    return [piece for piece in pieces if piece[0]]


def encode_sample(
    sample: Sample, chat: ChatFormat, tokenizer: Tokenizer
) -> tuple[list[int], list[float]]:
    """Token ids of a dialogue and the loss weight of each."""
    ids: list[int] = []
    weights: list[float] = []
    pieces = split_targets(chat.render_sample(sample), learns_history=sample.learns_history)
    for text, is_target in pieces:
        piece = tokenizer.encode(text, add_special_tokens=False).ids
        ids += piece
        weights += [1.0 if is_target else CONTEXT_WEIGHT] * len(piece)
    return ids, weights


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
