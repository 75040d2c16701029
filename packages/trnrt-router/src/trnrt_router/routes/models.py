"""`GET /v1/models` and `GET /v1/models/{id}`."""

from __future__ import annotations

from typing import Any

from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from trnrt_router.errors import NotFound, Unavailable
from trnrt_router.openai.common import ModelCard, ModelList
from trnrt_router.routes.json_reply import json_reply
from trnrt_router.service import Service


def models_routes(service: Service) -> list[HTTPRouteHandler]:
    def card() -> ModelCard:
        try:
            max_model_len = service.pool.info.max_model_len
        except Unavailable:  # still loading: the name is known, the window is not
            max_model_len = None
        return ModelCard(
            id=service.config.served_model_name,
            created=service.started_at,
            max_model_len=max_model_len,
        )

    @get("/v1/models", sync_to_thread=False)
    def list_models() -> Response[bytes]:
        return json_reply(ModelList(data=[card()]))

    # A name may hold slashes, as repository ids do.
    @get("/v1/models/{name:path}", sync_to_thread=False)
    def get_model(request: Request[Any, Any, Any]) -> Response[bytes]:
        asked = request.path_params["name"].removeprefix("/")
        if asked != service.config.served_model_name:
            raise NotFound(
                f"no model {asked!r} here; this server has {service.config.served_model_name!r}",
                param="model",
                code="model_not_found",
            )
        return json_reply(card())

    return [list_models, get_model]
