"""A request's `cache` field as the engine is told it."""

from __future__ import annotations

from trnrt_router.errors import InvalidRequest
from trnrt_router.openai.common import CacheField, CacheOptions
from trnrt_router.protocol import CacheControl, CacheMode


def cache_control(field: CacheField | None, *, session: str | None) -> CacheControl:
    """Read the body's `cache`; silence is `write`.

    Raises:
        InvalidRequest: names the option that contradicts another or lacks a session.
    """
    options = field if isinstance(field, CacheOptions) else CacheOptions(mode=field)
    mode = CacheMode(options.mode or CacheMode.WRITE)
    if mode is not CacheMode.WRITE:
        if options.ttl_s is not None:
            raise InvalidRequest(
                f"cache.ttl_s needs the mode write: {mode} leaves nothing", param="cache.ttl_s"
            )
        if options.pin:
            raise InvalidRequest(
                f"cache.pin needs the mode write: {mode} leaves nothing", param="cache.pin"
            )
    if options.pin and not session:
        raise InvalidRequest(
            "cache.pin needs a session to be released by; send session_id", param="cache.pin"
        )
    return CacheControl(
        mode=mode, ttl_s=options.ttl_s, pin=bool(options.pin), session_id=session or ""
    )
