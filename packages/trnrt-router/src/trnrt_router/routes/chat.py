"""`POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Any

from litestar import Request, post
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp

from trnrt_router.chat_reply import ChatReply
from trnrt_router.routes.generate import Answer
from trnrt_router.service import Service


def chat_route(service: Service) -> HTTPRouteHandler:
    @post("/v1/chat/completions", status_code=200)
    async def chat_completions(request: Request[Any, Any, Any]) -> ASGIApp:
        answer = Answer(service, "chat", ChatReply)
        return await answer.run(request, service.planner.plan_chat)

    return chat_completions
