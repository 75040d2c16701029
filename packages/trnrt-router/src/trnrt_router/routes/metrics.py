"""`GET` and `HEAD /metrics` for Prometheus."""

from __future__ import annotations

from litestar import HttpMethod, Response, route
from litestar.handlers import HTTPRouteHandler

from trnrt_router.metrics import CONTENT_TYPE
from trnrt_router.service import Service


def metrics_route(service: Service) -> HTTPRouteHandler:
    @route(
        "/metrics",
        http_method=[HttpMethod.GET, HttpMethod.HEAD],
        media_type=CONTENT_TYPE,
        sync_to_thread=False,
    )
    def metrics() -> Response[bytes]:
        return Response(service.metrics.render(), media_type=CONTENT_TYPE)

    return metrics
