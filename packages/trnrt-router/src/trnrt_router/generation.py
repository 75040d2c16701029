"""One client request in flight: its choices run on an engine, their tokens become text here."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import msgspec

from trnrt_router.engine_client import LOST_KIND, EngineClient
from trnrt_router.engine_pool import EnginePool
from trnrt_router.errors import ApiError, DeadlineExceeded, EngineFailed, EngineLost
from trnrt_router.mailbox import Mailbox
from trnrt_router.plan import GenerationPlan
from trnrt_router.protocol import (
    CacheReport,
    FinishReason,
    RequestError,
    RequestProgress,
    TokenDelta,
    TokenLogprob,
)
from trnrt_router.text.choice import ChoiceStream
from trnrt_router.text.tokenizer import Tokenizer
from trnrt_router.text.visible import CallDelta

logger = logging.getLogger(__name__)


class ChoiceEvent(msgspec.Struct, frozen=True, gc=False):
    """What arrived for one choice: visible text and calls, and logprobs of all its tokens."""

    index: int
    reasoning: str
    content: str
    logprobs: list[TokenLogprob]
    finish_reason: str | None
    tool_calls: tuple[CallDelta, ...] = ()


@dataclass(slots=True)
class _Choice:
    """A choice's reader and what it has counted."""

    index: int
    stream: ChoiceStream
    num_cached: int = 0
    cache_report: CacheReport | None = None
    is_finished: bool = False

    @property
    def has_begun(self) -> bool:
        return self.stream.num_tokens > 0

    def read(self, delta: TokenDelta) -> ChoiceEvent:
        """Turn new tokens into text; a stop string ends the choice before the engine does."""
        stream = self.stream
        self.num_cached = delta.num_cached_tokens
        self.cache_report = delta.cache_report or self.cache_report
        text = stream.push(delta.token_ids, stop_token_id=delta.stop_token_id)
        reasoning, content, calls = text.reasoning, text.content, text.tool_calls
        finish_reason = None
        if stream.stopped or delta.finish_reason is not None:
            self.is_finished = True
            rest = stream.finish(delta.finish_reason or FinishReason.STOP)
            reasoning += rest.reasoning
            content += rest.content
            calls += rest.tool_calls
            finish_reason = rest.finish_reason
        logprobs = delta.logprobs[: text.num_tokens] if delta.logprobs else []
        return ChoiceEvent(self.index, reasoning, content, logprobs, finish_reason, calls)


class Generation:
    """Runs a plan: `start` it, take `events` until `is_finished`, `close` it in any case.

    An engine that is lost before the first token is replaced once by another.
    """

    def __init__(self, plan: GenerationPlan, *, pool: EnginePool, tokenizer: Tokenizer) -> None:
        self.plan = plan
        self.engine: EngineClient | None = None
        self._pool = pool
        self._choices = [_new_choice(index, plan, tokenizer) for index in range(len(plan.choices))]
        self._by_request = {
            choice.request.request_id: self._choices[index]
            for index, choice in enumerate(plan.choices)
        }
        self._num_unfinished = len(self._choices)
        self._mailbox = Mailbox()
        self._has_token = False
        self._may_retry = True

    @property
    def is_finished(self) -> bool:
        return self._num_unfinished == 0

    @property
    def num_output_tokens(self) -> int:
        """Sampled tokens of all choices, thinking and stop tokens included."""
        return sum(choice.stream.num_tokens for choice in self._choices)

    @property
    def num_reasoning_tokens(self) -> int:
        return sum(choice.stream.num_reasoning_tokens for choice in self._choices)

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that were not computed, each prompt counted once."""
        return sum(c.num_cached for c in self._choices[:: self.plan.choices_per_prompt])

    @property
    def cache_reports(self) -> list[CacheReport]:
        """What the choices found in the prefix cache, as far as they have begun."""
        return [c.cache_report for c in self._choices if c.cache_report is not None]

    @property
    def progress(self) -> RequestProgress | None:
        """Where the first of the choices without a token stands, as its engine told last."""
        if self.engine is None:
            return None
        told = self.engine.progress
        waiting = (name for name, choice in self._by_request.items() if not choice.has_begun)
        return next((told[name] for name in waiting if name in told), None)

    async def start(self) -> None:
        """Hand the plan to an engine.

        Raises:
            ApiError: no engine takes it.
        """
        self.engine = await self._pool.submit(
            self.plan.requests, self._open_mailbox, key=self.plan.route
        )

    async def events(self, timeout_s: float) -> list[ChoiceEvent]:
        """Wait for the next tokens; empty when none came in time.

        Raises:
            ApiError: the request failed or its engine was lost; nothing of it runs any more.
        """
        deltas = await self._mailbox.take(timeout_s)
        events = []
        for delta in deltas:
            choice = self._by_request[delta.request_id]
            if choice.is_finished:
                continue
            reason = delta.finish_reason
            if delta.error is not None or (reason is not None and reason in _FAILED):
                if not await self._replace_lost(delta.error):
                    self.close()
                    raise _failure(delta)
                return []
            self._has_token = True
            events.append(choice.read(delta))
            if choice.is_finished:
                self._num_unfinished -= 1
                if reason is None and self.engine is not None:
                    self.engine.abort([delta.request_id])
        return events

    def close(self) -> None:
        """Abort what still runs; does not wait, so that a cancelled handler may call it."""
        self._mailbox.close()
        if self.engine is not None and not self.is_finished:
            self.engine.abort([request.request_id for request in self.plan.requests])
            self._num_unfinished = 0

    def _open_mailbox(self) -> Mailbox:
        self._mailbox.close()
        self._mailbox = Mailbox()
        return self._mailbox

    async def _replace_lost(self, error: RequestError | None) -> bool:
        """Start again elsewhere if the engine was lost before it gave a single token."""
        is_lost = error is not None and error.kind == LOST_KIND
        if not is_lost or self._has_token or not self._may_retry or self.engine is None:
            return False
        self._may_retry = False
        lost = self.engine.name
        logger.warning("request moved id=%s lost_engine=%s", self.plan.id, lost)
        try:
            self.engine = await self._pool.submit(
                self.plan.requests, self._open_mailbox, key=self.plan.route, exclude=(lost,)
            )
        except ApiError:
            return False
        return True


_FAILED = (FinishReason.ABORT, FinishReason.ERROR)


def _new_choice(index: int, plan: GenerationPlan, tokenizer: Tokenizer) -> _Choice:
    choice = plan.choices[index]
    stream = ChoiceStream(
        tokenizer,
        starts_in=choice.starts_in,
        stop=plan.stop,
        include_stop_str=plan.include_stop_str,
        markup=plan.markup,
        tools=plan.tools,
    )
    return _Choice(index, stream)


def _failure(delta: TokenDelta) -> ApiError:
    if delta.error is None:
        return EngineFailed("the engine stopped this request before it was finished")
    match delta.error.kind:
        case "EngineLost":
            return EngineLost(delta.error.message)
        case "DeadlineExceeded":
            return DeadlineExceeded(delta.error.message)
        case _:
            return EngineFailed(delta.error.message)
