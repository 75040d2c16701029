"""`POST /v1/chat/completions`: request, reply and stream chunk."""

from __future__ import annotations

from typing import Annotated, Any

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
    Refused,
    RepetitionPenalty,
    SessionKey,
    Stop,
    StreamOptions,
    Temperature,
    TextFormat,
    Usage,
    documented,
)

_A_TEXT = {"type": "string"}
_MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {
            "anyOf": [
                _A_TEXT,
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"type": {"const": "text"}, "text": _A_TEXT},
                        "required": ["type", "text"],
                    },
                },
            ]
        },
        "reasoning_content": _A_TEXT,
    },
    "required": ["role", "content"],
}
_TOOL = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]+$"},
                "description": _A_TEXT,
                "parameters": {"type": "object"},
            },
            "required": ["name"],
        },
    },
    "required": ["function"],
}
_EFFORT = {"enum": ["minimal", "low", "medium", "high", "xhigh", "max"]}


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A chat request; fields it does not name are accepted and reported as ignored.

    `messages` and `tools` stay plain mappings: the checkpoint's chat template reads them.
    """

    messages: Annotated[list[Annotated[dict[str, Any], documented(_MESSAGE)]], Meta(min_length=1)]
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Positive | None = None
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    temperature: Temperature | None = None
    top_p: Fraction | None = None
    top_k: Integer | None = None
    min_p: Fraction | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: RepetitionPenalty | None = None
    logit_bias: dict[str, Bias] | None = None
    logprobs: bool | None = None
    top_logprobs: NotNegative | None = None
    seed: Integer | None = None
    stop: Stop | None = None
    stop_token_ids: list[Integer] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: NotNegative | None = None
    ignore_eos: bool | None = None

    tools: list[Annotated[dict[str, Any], documented(_TOOL)]] | None = None
    tool_choice: Annotated[str | dict[str, Any], documented({"enum": ["auto", "none"]})] | None = (
        None
    )
    parallel_tool_calls: Annotated[bool, documented({"const": True})] | None = None
    response_format: TextFormat | None = None
    reasoning_effort: Annotated[str, documented(_EFFORT)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    session_id: SessionKey | None = None
    prompt_cache_key: SessionKey | None = None
    cache: CacheField | None = None
    cache_salt: CacheSalt | None = None
    priority: Integer | None = None
    user: str | None = None
    safety_identifier: str | None = None
    metadata: dict[str, Any] | None = None

    # Known and refused unless they ask for what happens anyway.
    modalities: list[Annotated[str, documented({"const": "text"})]] | None = None
    audio: Refused = None
    functions: Refused = None
    function_call: Refused = None
    web_search_options: Refused = None


class TopLogprob(msgspec.Struct, frozen=True):
    """One alternative at a position."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(msgspec.Struct, frozen=True):
    """The sampled token at a position, with the likeliest alternatives."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """One entry per sampled token, thinking and stop token included."""

    content: list[ChatTokenLogprob]
    refusal: None = None


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool is called with.

    Fields:
        arguments: JSON text; where a limit cut the call, its beginning.
    """

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the answer."""

    id: str
    function: FunctionCall
    type: str = "function"


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's answer; `content` is null beside tool calls if there is none."""

    content: str | None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    role: str = "assistant"


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of the `n` answers."""

    index: int
    message: ChatMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """Reply of a request that does not stream."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: str = "chat.completion"


class FunctionDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one chunk adds to a call: its name once, then pieces of its arguments' JSON text."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one chunk adds to a call; id, type and name come with its first chunk alone."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one chunk adds; a field that adds nothing is left out."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One choice's part of a chunk."""

    index: int
    delta: ChatDelta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One event of a stream."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType = UNSET
    object: str = "chat.completion.chunk"
