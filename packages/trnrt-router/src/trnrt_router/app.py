"""The OpenAI-compatible application: routes, limits, and one shape for every error."""

from __future__ import annotations

import logging
import math
from functools import partial
from typing import Any

from litestar import Litestar, Request, Response
from litestar.exceptions import HTTPException

from trnrt_router.disconnect import ClientGone
from trnrt_router.errors import ApiError, ErrorBody, ErrorReply
from trnrt_router.routes.cache import cache_routes
from trnrt_router.routes.chat import chat_route
from trnrt_router.routes.completions import completions_route
from trnrt_router.routes.document import document_route
from trnrt_router.routes.generate import CLIENT_GONE
from trnrt_router.routes.health import health_routes
from trnrt_router.routes.json_reply import json_reply
from trnrt_router.routes.metrics import metrics_route
from trnrt_router.routes.models import models_routes
from trnrt_router.service import Service

logger = logging.getLogger(__name__)

_CODES = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large"}


def create_app(service: Service) -> Litestar:
    """Build the application around a service; start-up connects its engines."""

    async def connect() -> None:
        service.pool.start()

    return Litestar(
        [
            chat_route(service),
            completions_route(service),
            *cache_routes(service),
            *models_routes(service),
            *health_routes(service),
            metrics_route(service),
            document_route(),
        ],
        on_startup=[connect],
        on_shutdown=[service.close],
        exception_handlers={
            ApiError: _tell_api_error,
            HTTPException: partial(_tell_http_error, max_body_bytes=service.config.max_body_bytes),
            ClientGone: _tell_nobody,
            Exception: _tell_bug,
        },
        openapi_config=None,
        logging_config=None,
        request_max_body_size=service.config.max_body_bytes,
    )


def _tell_api_error(request: Request[Any, Any, Any], error: ApiError) -> Response[bytes]:
    del request
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    return json_reply(error.reply(), status=error.status, headers=headers)


def _tell_http_error(
    request: Request[Any, Any, Any], error: HTTPException, *, max_body_bytes: int
) -> Response[bytes]:
    """Say in OpenAI's words what the framework refused."""
    status = error.status_code
    detail = error.detail
    if status == 413:
        detail = f"the body is larger than {max_body_bytes} bytes; --max-body-mib sets the limit"
    body = ErrorBody(
        message=f"{request.method} {request.url.path}: {detail}",
        type="invalid_request_error" if status < 500 else "server_error",
        code=_CODES.get(status),
    )
    return json_reply(ErrorReply(body), status=status, headers=error.headers)


def _tell_nobody(request: Request[Any, Any, Any], error: ClientGone) -> Response[bytes]:
    del request, error
    return Response(b"", status_code=CLIENT_GONE)


def _tell_bug(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    logger.error("request failed path=%s", request.url.path, exc_info=error)
    body = ErrorBody(
        message="the server ran into an error of its own; its log says more",
        type="server_error",
        code="server_error",
    )
    return json_reply(ErrorReply(body), status=500)
