"""What can go wrong in the router, and how it is told to an OpenAI client.

TrnrtRouterError
    ConfigError            a flag, file or environment value is wrong (also ValueError)
    MissingPart            a package or model that is not installed
    ProtocolMismatch       the engine speaks another wire version
    ApiError               anything a client is told; carries status, type, param and code
        InvalidRequest     400, names the field
            ContextTooLong 400 `context_length_exceeded`
        NotFound           404
        DeadlineExceeded   408, not started in time
        Overloaded         429 with Retry-After
        EngineFailed       500, the engine could not finish this request
        EngineLost         502, the engine's process or connection is gone
        Unavailable        503 with Retry-After, while loading or draining
"""

from __future__ import annotations

import msgspec

MAX_MESSAGE_CHARS = 2000


class ErrorBody(msgspec.Struct, frozen=True):
    """The inner object of OpenAI's error reply."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorReply(msgspec.Struct, frozen=True):
    """OpenAI's error reply."""

    error: ErrorBody


class TrnrtRouterError(Exception):
    """Root of this package's errors."""


class ConfigError(TrnrtRouterError, ValueError):
    """A setting has a value that cannot be used."""


class MissingPart(TrnrtRouterError):
    """Something that must be installed first; the message holds the command."""


class ProtocolMismatch(TrnrtRouterError):
    """Router and engine were built for different wire versions."""


class ApiError(TrnrtRouterError):
    """An error with a place in OpenAI's error object.

    Args:
        message: what, which value, what to do.
        param: the request field at fault, dotted (`messages.0.role`).
        code: machine-readable reason; defaults to the class's.
        retry_after_s: when to come back; sent as `Retry-After`.
    """

    status = 500
    type = "server_error"
    code: str | None = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or type(self).code
        self.retry_after_s = retry_after_s

    def reply(self) -> ErrorReply:
        """Return what the client is told; a value it sent is repeated only so far."""
        return ErrorReply(ErrorBody(_cut(self.message), self.type, self.param, self.code))


class InvalidRequest(ApiError):
    """The client's request is at fault."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"

    @classmethod
    def unsupported(cls, param: str, detail: str) -> InvalidRequest:
        """Refuse a known field whose value this server cannot honour."""
        return cls(f"{param}: {detail}", param=param, code="unsupported_value")


class ContextTooLong(InvalidRequest):
    """The prompt alone does not fit the window."""

    code = "context_length_exceeded"

    @classmethod
    def of(
        cls, num_prompt_tokens: int, max_model_len: int, *, param: str, at_least: bool = False
    ) -> ContextTooLong:
        count = f"at least {num_prompt_tokens}" if at_least else str(num_prompt_tokens)
        return cls(
            f"this model's maximum context length is {max_model_len} tokens, "
            f"but the prompt has {count}; one must be left to generate",
            param=param,
        )


class NotFound(ApiError):
    """No such route or model."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class DeadlineExceeded(ApiError):
    """The request waited longer than it allowed."""

    status = 408
    type = "timeout_error"
    code = "deadline_exceeded"


class Overloaded(ApiError):
    """The queue is full."""

    status = 429
    type = "rate_limit_error"
    code = "engine_overloaded"


class EngineFailed(ApiError):
    """The engine gave up on this request."""

    code = "engine_failed"


class EngineLost(ApiError):
    """The engine died or its connection broke while it held the request."""

    status = 502
    code = "engine_lost"


class Unavailable(ApiError):
    """No engine can take the request now."""

    status = 503
    code = "unavailable"


def _cut(message: str) -> str:
    """Keep both ends of a long message: what is wrong stands first, what to do stands last."""
    if len(message) <= MAX_MESSAGE_CHARS:
        return message
    half = MAX_MESSAGE_CHARS // 2
    return f"{message[:half]} ... ({len(message)} characters) ... {message[-half:]}"
