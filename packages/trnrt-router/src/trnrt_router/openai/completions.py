"""`POST /v1/completions`: request, reply and stream chunk."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from trnrt_router.openai.common import (
    Fraction,
    Integer,
    NotNegative,
    Penalty,
    Positive,
    StreamOptions,
    Temperature,
    Usage,
)


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A completion request; fields it does not name are accepted and reported as ignored.

    `prompt` is a string, a list of strings, a list of token ids or a list of such lists.
    """

    prompt: str | Annotated[list[str | Integer | list[Integer]], Meta(min_length=1)]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Positive | None = None
    max_tokens: Positive | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_k: Integer | None = None
    min_p: Fraction | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    logprobs: NotNegative | None = None
    seed: Integer | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Integer] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: NotNegative | None = None
    ignore_eos: bool | None = None

    session_id: str | None = None
    prompt_cache_key: str | None = None
    cache_salt: Annotated[str, Meta(max_length=1024)] | None = None
    priority: Integer | None = None
    user: str | None = None

    # Known and refused unless they ask for what happens anyway.
    echo: bool | None = None
    best_of: Positive | None = None
    suffix: str | None = None
    response_format: dict[str, Any] | None = None


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Parallel lists, one entry per sampled token.

    `text_offset` counts characters from the start of the choice's text.
    """

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One choice, or in a stream its part of a chunk; index = prompt index * n + choice."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Reply of a request that does not stream, and every event of one that does."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType = UNSET
    object: str = "text_completion"
