"""`GET /openapi.json`: what this server speaks, for tools."""

from __future__ import annotations

import msgspec
from litestar import MediaType, Response, get
from litestar.handlers import HTTPRouteHandler

from trnrt_router.openapi import openapi_document


def document_route() -> HTTPRouteHandler:
    body = msgspec.json.encode(openapi_document())

    @get("/openapi.json", sync_to_thread=False)
    def document() -> Response[bytes]:
        return Response(body, media_type=MediaType.JSON)

    return document
