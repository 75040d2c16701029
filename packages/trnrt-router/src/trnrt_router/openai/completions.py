"""`POST /v1/completions`: request, reply and stream chunk."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from trnrt_router.openai.common import (
    Bias,
    CacheField,
    CacheSalt,
    Fraction,
    Integer,
    NotNegative,
    Penalty,
    Positive,
    RepetitionPenalty,
    SessionKey,
    Stop,
    StreamOptions,
    Temperature,
    TextFormat,
    Usage,
    documented,
)

_TOKEN_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
# `allOf`, because msgspec's own description of the union stands beside it.
_PROMPT = {
    "allOf": [
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
                _TOKEN_IDS,
                {"type": "array", "items": _TOKEN_IDS, "minItems": 1},
            ]
        }
    ]
}


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A completion request; fields it does not name are accepted and reported as ignored.

    `prompt` is a string, a list of strings, a list of token ids or a list of such lists.
    """

    prompt: Annotated[
        str | Annotated[list[str | Integer | list[Integer]], Meta(min_length=1)],
        documented(_PROMPT),
    ]
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
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: dict[str, Bias] | None = None
    logprobs: NotNegative | None = None
    seed: Integer | None = None
    stop: Stop | None = None
    stop_token_ids: list[Integer] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: NotNegative | None = None
    ignore_eos: bool | None = None

    session_id: SessionKey | None = None
    prompt_cache_key: SessionKey | None = None
    cache: CacheField | None = None
    cache_salt: CacheSalt | None = None
    priority: Integer | None = None
    user: str | None = None

    # Known and refused unless they ask for what happens anyway.
    echo: Annotated[bool, documented({"const": False})] | None = None
    best_of: Positive | None = None
    suffix: Annotated[str, documented({"const": ""})] | None = None
    response_format: TextFormat | None = None


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
