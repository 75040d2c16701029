"""`POST /v1/completions`."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from trnrt_router.completion_reply import CompletionReply
from trnrt_router.routes.generate import Answer
from trnrt_router.service import Service


def completions_route(service: Service) -> HTTPRouteHandler:
    @post("/v1/completions", status_code=200)
    async def completions(request: Request[Any, Any, Any]) -> ASGIApp:
        answer = Answer(service, "completions", CompletionReply)
        return await answer.run(request, service.planner.plan_completion)

    return completions
