"""`GET /health`: this process lives. `GET /ready`: new requests are welcome."""

from __future__ import annotations

import msgspec
from litestar import Response, get
from litestar.handlers import HTTPRouteHandler

from trnrt_router.routes.json_reply import json_reply
from trnrt_router.service import Service


class Health(msgspec.Struct, frozen=True):
    """Liveness; says nothing about engines."""

    status: str = "ok"


class Readiness(msgspec.Struct, frozen=True):
    """Whether requests are taken, and where each engine stands."""

    ready: bool
    detail: str
    engines: dict[str, str]


def health_routes(service: Service) -> list[HTTPRouteHandler]:
    @get("/health", sync_to_thread=False)
    def health() -> Response[bytes]:
        return json_reply(Health())

    @get("/ready", sync_to_thread=False)
    def ready() -> Response[bytes]:
        readiness = Readiness(
            ready=service.is_ready,
            detail="shutting down" if service.is_draining else service.pool.describe(),
            engines={engine.name: engine.state.value for engine in service.pool.clients},
        )
        return json_reply(readiness, status=200 if readiness.ready else 503)

    return [health, ready]
