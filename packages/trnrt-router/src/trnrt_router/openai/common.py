"""Parts that the endpoints share: numbers as clients send them, usage, model cards."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

# Clients send 5.0 where they mean 5 (JSON has one number type); `integer` narrows it.
_AN_INTEGER = {"type": "integer"}
Integer = Annotated[int | float, Meta(extra_json_schema=_AN_INTEGER)]
Positive = Annotated[
    Annotated[int, Meta(ge=1)] | Annotated[float, Meta(ge=1)], Meta(extra_json_schema=_AN_INTEGER)
]
NotNegative = Annotated[
    Annotated[int, Meta(ge=0)] | Annotated[float, Meta(ge=0)], Meta(extra_json_schema=_AN_INTEGER)
]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
RepetitionPenalty = Annotated[float, Meta(gt=0, le=10)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
StopString = Annotated[str, Meta(min_length=1, max_length=1024)]
Stop = StopString | Annotated[list[StopString], Meta(max_length=16)]
CacheSalt = Annotated[str, Meta(max_length=1024)]
SessionKey = Annotated[str, Meta(max_length=512)]


def documented(schema: dict[str, Any]) -> Meta:
    """Say in the OpenAPI document what a plain JSON type cannot; validation is elsewhere."""
    return Meta(extra_json_schema=schema)


Refused = Annotated[Any, documented({"type": "null"})]
TextFormat = Annotated[
    dict[str, Any], documented({"properties": {"type": {"const": "text"}}, "required": ["type"]})
]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a stream carries beside its deltas."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


CacheModeName = Literal["read", "write", "off"]


class CacheOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a request uses the prefix cache, in full; a bare mode says the same in short.

    `read` uses cached prefixes and leaves none, `write` (the default) uses and leaves them, `off`
    does neither.
    """

    mode: CacheModeName | None = None
    ttl_s: Annotated[float, Meta(gt=0)] | None = None
    pin: bool | None = None


CacheField = CacheModeName | CacheOptions


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Prompt tokens that were not computed again."""

    cached_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """Generated tokens that were thinking."""

    reasoning_tokens: int = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one request, all choices together; the prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `GET /v1/models`."""

    id: str
    created: int
    max_model_len: int | None = None
    object: str = "model"
    owned_by: str = "trnrt"


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Reply of `GET /v1/models`."""

    data: list[ModelCard]
    object: str = "list"
