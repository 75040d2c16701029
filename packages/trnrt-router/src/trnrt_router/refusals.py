"""What an engine's process answered instead of a success, as this package's errors."""

from __future__ import annotations

import msgspec

from trnrt_router.errors import (
    ApiError,
    ContextTooLong,
    EngineFailed,
    EngineLost,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from trnrt_router.protocol import Refusal


def read_refusal(status: int, body: bytes) -> Refusal:
    """Read the body of a reply that is no success; any body yields a refusal."""
    try:
        return msgspec.msgpack.decode(body, type=Refusal)
    except msgspec.DecodeError:
        return Refusal("Unknown", f"answered with status {status}")


def post_error(engine: str, status: int, body: bytes) -> ApiError:
    """Return the error of a refused post, in the words a client is told."""
    refusal = read_refusal(status, body)
    message = refusal.message
    match status:
        case 400 if refusal.kind == ContextTooLong.__name__:
            return ContextTooLong(message, param=refusal.param)
        case 400:
            return InvalidRequest(message, param=refusal.param)
        case 410:
            return EngineLost(f"engine {engine}: {message}")
        case 429:
            return Overloaded(message, retry_after_s=refusal.retry_after_s)
        case 503:
            return Unavailable(message, retry_after_s=refusal.retry_after_s)
        case _:
            return EngineFailed(f"engine {engine}: {message}")
