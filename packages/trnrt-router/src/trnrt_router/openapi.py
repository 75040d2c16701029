"""The OpenAPI document of our routes, made from the Structs that read and write their bodies."""

from __future__ import annotations

from typing import Any

import msgspec

from trnrt_router.__about__ import __version__
from trnrt_router.affinity import MAX_KEY_CHARS
from trnrt_router.errors import ErrorReply
from trnrt_router.openai.chat import ChatChunk, ChatCompletion, ChatRequest
from trnrt_router.openai.common import ModelCard, ModelList
from trnrt_router.openai.completions import Completion, CompletionRequest
from trnrt_router.routes.cache import CacheFlush, EnginesTold
from trnrt_router.routes.health import Health, Readiness

Json = dict[str, Any]

_STRUCTS = (
    ChatRequest,
    ChatCompletion,
    ChatChunk,
    CompletionRequest,
    Completion,
    CacheFlush,
    EnginesTold,
    ModelList,
    ModelCard,
    Health,
    Readiness,
    ErrorReply,
)
_ERRORS = {
    400: "the request is at fault; `param` names the field",
    404: "no such model",
    408: "not started in time",
    413: "the body is too large",
    429: "the queue is full; `Retry-After` says for how long",
    500: "the engine could not finish",
    502: "the engine was lost",
    503: "loading or shutting down",
}


def _event_of(schema: Json) -> Json:
    """Describe one server-sent event: its data is JSON text (or the final `[DONE]`)."""
    chunk = {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}
    data = {"anyOf": [{"const": "[DONE]"}, chunk]}
    return {"type": "object", "properties": {"data": data}, "required": ["data"]}


def _id_in_path(**limits: int) -> Json:
    return {
        "name": "id",
        "in": "path",
        "required": True,
        "schema": {"type": "string", **limits},
    }


def openapi_document() -> Json:
    """Build the document; 3.1, because its schemas are JSON Schema's."""
    schemas, components = msgspec.json.schema_components(
        _STRUCTS, ref_template="#/components/schemas/{name}"
    )
    schema_of: dict[type, Json] = dict(zip(_STRUCTS, schemas, strict=True))

    def json_body(struct: type, text: str = "the answer") -> Json:
        return {"description": text, "content": {"application/json": {"schema": schema_of[struct]}}}

    errors = {str(status): json_body(ErrorReply, text) for status, text in _ERRORS.items()}

    def generating(request: type, whole: type, chunk: type, summary: str) -> Json:
        answer = json_body(whole)
        answer["content"]["text/event-stream"] = {"schema": _event_of(schema_of[chunk])}
        body = {"required": True, **json_body(request, "the request")}
        return {
            "post": {"summary": summary, "requestBody": body, "responses": {"200": answer} | errors}
        }

    def reading(reply: type, summary: str, **responses: Json) -> Json:
        return {"get": {"summary": summary, "responses": {"200": json_body(reply)} | responses}}

    def telling(summary: str, *statuses: str) -> Json:
        answers = {"200": json_body(EnginesTold)} | {s: errors[s] for s in statuses}
        return {"summary": summary, "responses": answers}

    flush = telling("Forget cached prefixes", "400", "413", "503")
    flush["requestBody"] = {"required": False, **json_body(CacheFlush, "what; nothing means all")}
    release = telling("Unpin what a session has pinned in the cache", "400", "404", "503")
    release["parameters"] = [_id_in_path(minLength=1, maxLength=MAX_KEY_CHARS)]
    one_model = reading(ModelCard, "One model", **{"404": errors["404"]})
    one_model["get"]["parameters"] = [_id_in_path()]
    text = {"200": {"description": "the metrics", "content": {"text/plain": {}}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "trnrt", "version": __version__},
        "paths": {
            "/v1/chat/completions": generating(
                ChatRequest, ChatCompletion, ChatChunk, "Answer a conversation"
            ),
            "/v1/completions": generating(
                CompletionRequest, Completion, Completion, "Continue a text"
            ),
            "/v1/cache/flush": {"post": flush},
            "/v1/cache/sessions/{id}": {"delete": release},
            "/v1/models": reading(ModelList, "List models"),
            "/v1/models/{id}": one_model,
            "/health": reading(Health, "Whether this process lives"),
            "/ready": reading(
                Readiness,
                "Whether requests are taken",
                **{"503": json_body(Readiness, "they are not; `detail` says why")},
            ),
            "/metrics": {
                "get": {"summary": "Prometheus metrics", "responses": text},
                "head": {"summary": "The same without a body", "responses": text},
            },
        },
        "components": {"schemas": components},
    }
