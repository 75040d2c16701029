"""Decide what each step computes: continuous batching over ints, no tensors.

    plan = scheduler.schedule()
    handle = runner.launch(plan)
    scheduler.commit(plan, handle.result())

One more plan may be made before the oldest is committed; its rows then stand on tokens that
are still being drawn. Who holds pages or a state slot keeps them until no step in flight
touches them.

A step is a prefill chunk of one sequence or one decode of all that have a seat. `waiting.py` says
who is admitted next and whose chunk is next, `stall_budget.py` whether a chunk fits before the
next decode and how large it is. More sequences are admitted than have a seat: the others are
computed up to their first token and wait, in that order, for a seat.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable

from trnrt_engine.admitted import Admitted
from trnrt_engine.api import FinishReason, RequestError, RequestProgress, TokenDelta
from trnrt_engine.cache.manager import CacheManager
from trnrt_engine.cache.sequence import SequenceCache
from trnrt_engine.deadlines import Deadlines
from trnrt_engine.errors import (
    DeadlineExceeded,
    IntegrityError,
    NonFiniteOutput,
    TrnrtEngineError,
)
from trnrt_engine.fair_share import FairShare
from trnrt_engine.metrics import EngineMetrics
from trnrt_engine.outbox import Outbox
from trnrt_engine.plan import DecodeRow, PrefillChunk, SchedulerOutput, StepResult
from trnrt_engine.progress import progress_of
from trnrt_engine.request import Request, RequestStatus
from trnrt_engine.stall_budget import StallBudget
from trnrt_engine.waiting import PrefillTurns, WaitingQueue

MAX_STEPS_IN_FLIGHT = 2


class Scheduler:
    """Requests waiting and running, and the plans in flight.

    Args:
        max_num_seqs: seats: sequences decoded at once.
        stall_budget: chooses between chunk and decode.
        prefill_ahead: sequences admitted beyond the seats.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        *,
        cache: CacheManager,
        metrics: EngineMetrics,
        max_num_seqs: int,
        stall_budget: StallBudget,
        clock: Callable[[], float],
        prefill_ahead: int = 0,
    ) -> None:
        self._shares = FairShare()
        self._turns = PrefillTurns(self._shares)
        self._stall_budget = stall_budget
        self.waiting = WaitingQueue(self._shares)
        self._admitted = Admitted(
            self._shares, num_seats=max_num_seqs, num_places=max_num_seqs + prefill_ahead
        )
        self.running = self._admitted.running
        self._cache = cache
        self._metrics = metrics
        self._clock = clock
        self._by_id: dict[str, Request] = {}
        self._deadlines = Deadlines()
        self._serial = itertools.count()
        self._in_flight: deque[tuple[SchedulerOutput, list[Request]]] = deque()
        self._outbox = Outbox(metrics)

    @property
    def has_work(self) -> bool:
        """Something waits, runs or is in flight."""
        return bool(self._by_id or self._in_flight)

    @property
    def num_in_flight(self) -> int:
        """Plans not yet committed."""
        return len(self._in_flight)

    def add(self, request: Request) -> None:
        """Queue a new request.

        One whose prior output already ends it is finished at once.
        """
        prior = request.spec.prior_output_ids
        self._by_id[request.request_id] = request
        self._shares.enter(request.tenant)
        if prior and (reason := request.finish_reason_of(prior[-1])) is not None:
            self._finish(request, reason)
            return
        self.waiting.add(request)
        self._deadlines.watch(request)

    def abort(self, request_id: str) -> None:
        """End a request wherever it stands; an unknown id is one that has ended."""
        request = self._by_id.get(request_id)
        if request is not None:
            self._finish(request, FinishReason.ABORT)

    def schedule(self) -> SchedulerOutput | None:
        """Plan the next step; None when there is nothing to compute now."""
        if len(self._in_flight) >= MAX_STEPS_IN_FLIGHT:
            raise IntegrityError(f"{len(self._in_flight)} steps in flight: commit one first")
        now_s = self._clock()
        self._cache.poll()
        self._expire(now_s)
        self._admit(now_s)
        prefilling, decoding = self._admitted.prefilling(), self._admitted.decoding()
        chunk_of, num_tokens = self._choose_chunk(prefilling, decoding, now_s)
        if chunk_of is not None and num_tokens:
            plan, requests = self._plan_prefill(chunk_of, num_tokens), [chunk_of]
        elif decoding:
            plan, requests = self._plan_decode(decoding), decoding
        elif self._by_id and not self._in_flight and not self._cache.is_copying:
            raise IntegrityError(f"{len(self._by_id)} requests and none can make progress")
        else:
            return None
        for request in requests:
            request.num_steps_in_flight += 1
        self._stall_budget.plan_step(plan, is_prefilling=bool(prefilling), now_s=now_s)
        self._in_flight.append((plan, requests))
        return plan

    def commit(self, plan: SchedulerOutput, result: StepResult) -> None:
        """Take in what a step drew; plans are committed in the order they were made."""
        now_s = self._clock()
        self._metrics.steps += 1
        requests = self._land(plan, now_s)
        chunk = plan.prefill
        if chunk is not None:
            self._metrics.prompt_tokens += len(chunk.token_ids)
        is_forced = [not chunk.samples] if chunk else [row.is_forced for row in plan.decode]
        for index, request in enumerate(requests):
            if request.status is RequestStatus.FINISHED:
                self._release_when_landed(request)
                continue
            if result.is_finite and not result.is_finite[index]:
                self._cache.discard(_held(request))
                self._fail(request, NonFiniteOutput("the model's output for it is not finite"))
                continue
            if chunk is not None:
                request.num_prefilled_tokens = chunk.start + len(chunk.token_ids)
                self._cache.publish(_held(request), request.num_prefilled_tokens)
            if not is_forced[index]:
                self._take_token(request, result, row=index, now_s=now_s)

    def fail(self, plan: SchedulerOutput, error: TrnrtEngineError) -> None:
        """End every request of a step that raised; the others go on."""
        self._metrics.steps += 1
        for request in self._land(plan, self._clock(), has_failed=True):
            if request.status is RequestStatus.FINISHED:
                self._release_when_landed(request)
            else:
                self._fail(request, error)

    def take_deltas(self) -> list[TokenDelta]:
        """Hand out what happened since the last call."""
        return self._outbox.take()

    @property
    def prefill_tokens_per_s(self) -> float | None:
        """How quickly prompts are computed; None before enough were. May be read in any thread."""
        return self._stall_budget.speed.tokens_per_s

    def progress(self) -> dict[str, RequestProgress]:
        """Say of every request before its first token where it stands."""
        return progress_of(
            self.running, self.waiting.in_order(), tokens_per_s=self.prefill_tokens_per_s
        )

    def check_integrity(self) -> None:
        """Prove that pages, slots and request states add up.

        Raises:
            IntegrityError: they do not; the message says what is lost.
        """
        flying = {id(r): r for _, requests in self._in_flight for r in requests}
        holders = {id(r): r for r in (*self.running, *flying.values())}
        self._cache.check_integrity(_held(request) for request in holders.values())
        self._admitted.check_integrity()
        for request in self.running:
            num_pages = len(_held(request).page_ids)
            if num_pages != self._cache.pages_for(request.num_computed_tokens):
                raise IntegrityError(f"{num_pages} pages for {request.num_computed_tokens} tokens")
        if any(r.status is not RequestStatus.WAITING or r.cache for r in self.waiting):
            raise IntegrityError("a waiting request holds something or is not waiting")
        live = {id(r) for r in (*self.running, *self.waiting)}
        if live != {id(r) for r in self._by_id.values()}:
            raise IntegrityError("the requests by id are not those waiting and running")

    def _expire(self, now_s: float) -> None:
        for request in self._deadlines.take_expired(now_s):
            if request.status is RequestStatus.RUNNING:
                self._finish(request, FinishReason.LENGTH)
            else:
                deadline_s = request.spec.deadline_s
                self._fail(request, DeadlineExceeded(f"not started within {deadline_s:g} s"))

    def _admit(self, now_s: float) -> None:
        waiting = self.waiting
        for loading in waiting.aside:
            if not self._cache.is_loading(loading.admission):
                waiting.put_back(loading)
        while not self._admitted.is_full and (request := waiting.next()) is not None:
            cache = self._cache.admit(request.admission)
            if cache is not None:
                waiting.take(request)
                request.start(cache)
                self._admitted.enter(request)
                self._metrics.queue_s.observe(now_s - request.arrival_s)
            elif self._cache.is_loading(request.admission):
                waiting.set_aside(request)
            else:
                return

    def _choose_chunk(
        self, prefilling: list[Request], decoding: list[Request], now_s: float
    ) -> tuple[Request | None, int]:
        """Return whose chunk is next and its tokens; none of them when a decode comes first."""
        if not prefilling:
            return None, 0
        decode = None
        if decoding:
            context = max(request.num_computed_tokens for request in decoding) + 1
            decode = self._stall_budget.times.decode_shape(len(decoding), context)
        request = self._turns.next(prefilling)
        num_tokens = self._stall_budget.plan_chunk(
            request.num_computed_tokens, request.num_prefill_tokens, decode, now_s=now_s
        )
        return request, num_tokens

    def _plan_prefill(self, request: Request, num_tokens: int) -> SchedulerOutput:
        cache, start = _held(request), request.num_computed_tokens
        self._turns.count()
        self._shares.count(request.tenant, num_tokens, is_promised=True)
        end = start + num_tokens
        self._cache.grow(cache, end)
        request.num_computed_tokens = end
        is_first = start == cache.num_cached_tokens
        chunk = PrefillChunk(
            request=request.spec,
            state_slot=cache.state_slot,
            page_ids=cache.page_ids,
            start=start,
            token_ids=request.spec.token_ids[start:end],
            is_first=is_first,
            samples=end == request.num_prompt_tokens and request.num_prior_tokens == 0,
            stop_ids=request.stop_ids,
            restore=cache.restore if is_first else None,
            exports=self._cache.plan_exports(cache, start, end),
        )
        return SchedulerOutput(next(self._serial), prefill=chunk)

    def _plan_decode(self, requests: list[Request]) -> SchedulerOutput:
        previous = self._in_flight[-1][1] if self._in_flight else []
        rows = []
        for request in requests:
            cache, position = _held(request), request.num_computed_tokens
            self._shares.count(request.tenant, 1, is_promised=False)
            token_id = request.next_token_id()
            index = request.next_output_index
            self._cache.grow(cache, position + 1)
            request.num_computed_tokens = position + 1
            rows.append(
                DecodeRow(
                    request=request.spec,
                    state_slot=cache.state_slot,
                    page_ids=cache.page_ids,
                    position=position,
                    token_id=token_id,
                    previous_row=previous.index(request) if token_id is None else None,
                    output_index=index,
                    is_forced=index < request.num_prior_tokens,
                    stop_ids=request.stop_ids,
                )
            )
        return SchedulerOutput(next(self._serial), decode=tuple(rows))

    def _land(
        self, plan: SchedulerOutput, now_s: float, *, has_failed: bool = False
    ) -> list[Request]:
        if not self._in_flight or self._in_flight[0][0] is not plan:
            raise IntegrityError(f"step {plan.step_id} is not the oldest in flight")
        _, requests = self._in_flight.popleft()
        self._stall_budget.land_step(now_s=now_s, has_failed=has_failed)
        for request in requests:
            request.num_steps_in_flight -= 1
        return requests

    def _take_token(self, request: Request, result: StepResult, *, row: int, now_s: float) -> None:
        token_id = result.token_ids[row]
        request.output_token_ids.append(token_id)
        reason = request.finish_reason_of(token_id)
        self._outbox.put_token(request, result, row=row, reason=reason, now_s=now_s)
        if reason is not None:
            self._retire(request)

    def _fail(self, request: Request, error: TrnrtEngineError) -> None:
        self._finish(request, FinishReason.ERROR, error=error.as_request_error())

    def _finish(
        self, request: Request, reason: FinishReason, *, error: RequestError | None = None
    ) -> None:
        self._outbox.put_end(request, reason, error=error)
        self._retire(request)

    def _retire(self, request: Request) -> None:
        if request.status is RequestStatus.WAITING and request in self.waiting:
            self.waiting.remove(request)
            self._cache.withdraw(request.admission)
        elif request.status is RequestStatus.RUNNING:
            self._admitted.leave(request)
        request.status = RequestStatus.FINISHED
        del self._by_id[request.request_id]
        self._shares.leave(request.tenant)
        self._release_when_landed(request)

    def _release_when_landed(self, request: Request) -> None:
        if request.cache is not None and request.num_steps_in_flight == 0:
            self._cache.release(request.cache)
            request.cache = None


def _held(request: Request) -> SequenceCache:
    if request.cache is None:
        raise IntegrityError("a request that runs or is in flight holds no room in the caches")
    return request.cache
