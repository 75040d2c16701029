"""`POST /v1/cache/flush` and `DELETE /v1/cache/sessions/{id}`: what operators do to the cache."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import msgspec
from litestar import Request, Response, delete, post
from litestar.handlers import HTTPRouteHandler

from trnrt_router.affinity import MAX_KEY_CHARS
from trnrt_router.errors import InvalidRequest
from trnrt_router.openai.common import CacheSalt
from trnrt_router.openai.decode import decode_body
from trnrt_router.routes.json_reply import json_reply
from trnrt_router.service import Service


class CacheFlush(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What to forget: the prefixes of one salt (empty: of requests without one), or all."""

    cache_salt: CacheSalt | None = None


class EnginesTold(msgspec.Struct, frozen=True):
    """The engines that did what was asked: all there are."""

    engines: list[str]


def cache_routes(service: Service) -> list[HTTPRouteHandler]:
    @post("/v1/cache/flush", status_code=200)
    async def flush(request: Request[Any, Any, Any]) -> Response[bytes]:
        # Not lenient as elsewhere: a misspelled salt must not flush everything.
        asked, _ = decode_body(await request.body() or b"{}", CacheFlush)
        return json_reply(EnginesTold(await service.pool.flush(asked.cache_salt)))

    # An id may hold slashes.
    @delete("/v1/cache/sessions/{session_id:path}", status_code=200)
    async def release_session(request: Request[Any, Any, Any]) -> Response[bytes]:
        session_id = _id_at_end(request.scope["raw_path"])
        if not 0 < len(session_id) <= MAX_KEY_CHARS:
            raise InvalidRequest(
                f"a session id has 1 to {MAX_KEY_CHARS} characters, this one {len(session_id)}",
                param="session_id",
            )
        return json_reply(EnginesTold(await service.pool.release_session(session_id)))

    return [flush, release_session]


def _id_at_end(raw_path: bytes) -> str:
    """Return the session id as it was sent; routing drops slashes at the ends and double ones."""
    return unquote(raw_path.decode("ascii")).partition("/sessions/")[2]
