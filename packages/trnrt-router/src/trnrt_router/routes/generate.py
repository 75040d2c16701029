"""What both generating endpoints do with a request, from its body to its last byte."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

import msgspec
from litestar import Request
from litestar.exceptions import HTTPException
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp
from msgspec import UNSET

from trnrt_router.disconnect import ClientGone, read_body, until_disconnect
from trnrt_router.errors import ApiError
from trnrt_router.generation import ChoiceEvent, Generation
from trnrt_router.headers import cache_fields, field_list, key_values, request_id, sentence_list
from trnrt_router.openai.common import Usage
from trnrt_router.plan import GenerationPlan
from trnrt_router.protocol import CacheReport
from trnrt_router.service import Planner, Service
from trnrt_router.stream import DONE, EventStream, comment, error_event, event
from trnrt_router.text.tokenizer import Tokenizer
from trnrt_router.usage import usage_of
from trnrt_router.waiting_note import waiting_note

logger = logging.getLogger(__name__)


# Never sent: stands in metrics and logs for a client that did not wait.
CLIENT_GONE = 499


class Reply(Protocol):
    """Writes a generation in the words of one endpoint."""

    def chunk(
        self, event: ChoiceEvent, usage: Usage | msgspec.UnsetType = UNSET
    ) -> msgspec.Struct | None: ...
    def usage_chunk(self, generation: Generation) -> msgspec.Struct: ...
    def whole(self, events: Sequence[ChoiceEvent], generation: Generation) -> msgspec.Struct: ...


class Answer:
    """One request of one endpoint while it is answered."""

    def __init__(self, service: Service, endpoint: str, make_reply: MakeReply) -> None:
        self._service = service
        self._endpoint = endpoint
        self._make_reply = make_reply
        self._began = time.monotonic()
        self._generation: Generation | None = None
        self._status = 500
        service.enter()

    async def run(self, request: Request[Any, Any, Any], planner: Planner) -> ASGIApp:
        """Plan and start the request; return its response.

        Raises:
            ApiError: nothing has been sent yet; the error is the reply.
            ClientGone: the client left first.
        """
        has_left = False
        try:
            self._service.check_accepting()
            body = await read_body(request)
            plan = await until_disconnect(
                request.receive, self._service.plan(planner, body, request.headers)
            )
            self._generation = generation = self._service.generation(plan)
            reply = self._make_reply(plan, self._service.planner.tokenizer)
            if not plan.is_stream:
                whole = await until_disconnect(request.receive, self._whole(generation, reply))
                self._status = 200
                return ASGIResponse(
                    body=msgspec.json.encode(whole), headers=self._headers(request, generation)
                )
            first = await until_disconnect(request.receive, self._first(generation))
            self._status = 200
            has_left = True
            return EventStream(
                self._events(generation, reply, first),
                headers=self._headers(request, generation),
                on_end=self._end,
            )
        except ApiError as error:
            self._status = error.status
            raise
        except ClientGone:
            self._status = CLIENT_GONE
            raise
        except HTTPException as error:  # the framework's word on a body: too large, not whole
            self._status = error.status_code
            raise
        finally:
            if not has_left:
                self._end()

    async def _whole(self, generation: Generation, reply: Reply) -> msgspec.Struct:
        await generation.start()
        events: list[ChoiceEvent] = []
        while not generation.is_finished:
            arrived = await generation.events(self._service.config.keepalive_s)
            if arrived and not events:
                self._note_first_token()
            events += arrived
        return reply.whole(events, generation)

    async def _first(self, generation: Generation) -> list[ChoiceEvent]:
        await generation.start()
        return await generation.events(self._service.config.first_byte_wait_s)

    async def _events(
        self, generation: Generation, reply: Reply, events: list[ChoiceEvent]
    ) -> AsyncIterator[bytes]:
        has_token = False
        try:
            while True:
                if not events:
                    yield comment(waiting_note(generation.progress))
                elif not has_token:
                    has_token = True
                    self._note_first_token()
                if data := self._frame(events, generation, reply):
                    yield data
                if generation.is_finished:
                    break
                events = await generation.events(self._service.config.keepalive_s)
        except ApiError as error:
            self._status = error.status
            yield error_event(error)
            return
        if generation.plan.include_usage:
            yield event(reply.usage_chunk(generation))
        yield DONE

    def _frame(self, events: Sequence[ChoiceEvent], generation: Generation, reply: Reply) -> bytes:
        usage = usage_of(generation) if generation.plan.continuous_usage else UNSET
        data = b""
        for entry in events:
            chunk = reply.chunk(entry, usage)
            if chunk is not None:
                data += event(chunk)
        return data

    def _headers(self, request: Request[Any, Any, Any], generation: Generation) -> dict[str, str]:
        plan = generation.plan
        headers = {"x-request-id": request_id(request.headers)}
        if generation.engine is not None:
            headers["x-trnrt-engine"] = generation.engine.name
        if generation.cache_reports:  # a stream may leave before its first token
            headers["x-trnrt-cache"] = key_values(cache_fields(generation.cache_reports[0]))
        if plan.ignored_fields:
            headers["x-trnrt-ignored-fields"] = field_list(plan.ignored_fields)
        if plan.warnings:
            headers["x-trnrt-warnings"] = sentence_list(plan.warnings)
        return headers

    def _note_first_token(self) -> None:
        self._service.metrics.time_to_first_token_s.observe(time.monotonic() - self._began)

    def _end(self) -> None:
        """Free what the request holds and count it, whatever ended it."""
        service, generation = self._service, self._generation
        elapsed_s = time.monotonic() - self._began
        if self._status == 200 and generation is not None and not generation.is_finished:
            self._status = CLIENT_GONE
        service.leave()
        metrics = service.metrics
        metrics.requests.labels(self._endpoint, str(self._status)).inc()
        metrics.request_s.observe(elapsed_s)
        if generation is None:
            return
        generation.close()
        metrics.prompt_tokens.inc(generation.plan.num_prompt_tokens)
        metrics.cached_tokens.inc(generation.num_cached_tokens)
        reports = generation.cache_reports
        for report in reports:
            found = cache_fields(report)
            metrics.cache_lookups.labels(found["reason"], found["tier"]).inc()
            metrics.replayed_tokens.inc(report.replayed)
        found = cache_fields(reports[0] if reports else CacheReport())
        metrics.generation_tokens.inc(generation.num_output_tokens)
        logger.info(
            "request finished id=%s engine=%s status=%d prompt=%d cached=%d output=%d seconds=%.3f "
            "kv_depth=%s state_depth=%s replayed=%s tier=%s cache=%s",
            generation.plan.id,
            generation.engine.name if generation.engine else "-",
            self._status,
            generation.plan.num_prompt_tokens,
            generation.num_cached_tokens,
            generation.num_output_tokens,
            elapsed_s,
            *found.values(),
        )


MakeReply = Callable[[GenerationPlan, Tokenizer], Reply]
