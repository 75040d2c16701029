"""Decide what each step computes: continuous batching over ints, no tensors.

    plan = scheduler.schedule()
    handle = runner.launch(plan)
    scheduler.commit(plan, handle.result())

One more plan may be made before the oldest is committed; its rows then stand on tokens that
are still being drawn. Who holds pages or a state slot keeps them until no step in flight
touches them.

Order: first come, first served; nobody overtakes the head of the queue, unless that waits for its
cached prefix to be loaded. A step is a prefill
chunk of one sequence or one decode of all that can; while both are wanted they alternate, so a
running stream waits for one chunk at most and a prompt for one decode. Every second chunk goes to
the prompt with the least left: a short one does not wait behind a long one, which loses little.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable

from trnrt_engine.api import FinishReason, RequestError, TokenDelta
from trnrt_engine.cache.manager import CacheManager
from trnrt_engine.cache.sequence import SequenceCache
from trnrt_engine.errors import (
    DeadlineExceeded,
    IntegrityError,
    NonFiniteOutput,
    TrnrtEngineError,
)
from trnrt_engine.metrics import EngineMetrics
from trnrt_engine.outbox import Outbox
from trnrt_engine.plan import DecodeRow, PrefillChunk, SchedulerOutput, StepResult
from trnrt_engine.request import Request, RequestStatus
from trnrt_kernels.serving import GRID

MAX_STEPS_IN_FLIGHT = 2


class Scheduler:
    """Requests waiting and running, and the plans in flight.

    Args:
        max_num_seqs: sequences admitted at once.
        token_budget: tokens of a prefill chunk at most; at least one grid step.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        *,
        cache: CacheManager,
        metrics: EngineMetrics,
        max_num_seqs: int,
        token_budget: int,
        clock: Callable[[], float],
    ) -> None:
        if token_budget < GRID:
            raise ValueError(f"token_budget is {token_budget}, must be at least {GRID}")
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._cache = cache
        self._metrics = metrics
        self._max_num_seqs = max_num_seqs
        self._chunk_tokens = token_budget // GRID * GRID
        self._clock = clock
        self._by_id: dict[str, Request] = {}
        self._deadlines: list[tuple[float, int, Request]] = []
        self._serial = itertools.count()
        self._in_flight: deque[tuple[SchedulerOutput, list[Request]]] = deque()
        self._was_prefill = False
        self._num_chunks = 0
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
        """Put a new request at the end of the queue.

        One whose prior output already ends it is finished at once.
        """
        prior = request.spec.prior_output_ids
        self._by_id[request.request_id] = request
        if prior and (reason := request.finish_reason_of(prior[-1])) is not None:
            self._finish(request, reason)
            return
        self.waiting.append(request)
        if request.deadline_at_s is not None:
            self._watch_deadline(request, request.deadline_at_s)

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
        chunk_of = self._next_prefill()
        decoding = [request for request in self.running if request.can_decode]
        if chunk_of is not None and not (self._was_prefill and decoding):
            plan, requests = self._plan_prefill(chunk_of), [chunk_of]
        elif decoding:
            plan, requests = self._plan_decode(decoding), decoding
        elif self._by_id and not self._in_flight and not self._cache.is_copying:
            raise IntegrityError(f"{len(self._by_id)} requests and none can make progress")
        else:
            return None
        for request in requests:
            request.num_steps_in_flight += 1
        self._was_prefill = plan.prefill is not None
        self._in_flight.append((plan, requests))
        return plan

    def commit(self, plan: SchedulerOutput, result: StepResult) -> None:
        """Take in what a step drew; plans are committed in the order they were made."""
        now_s = self._clock()
        self._metrics.steps += 1
        requests = self._land(plan)
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
                self._cache.publish(_held(request), chunk.start + len(chunk.token_ids))
            if not is_forced[index]:
                self._take_token(request, result, row=index, now_s=now_s)

    def fail(self, plan: SchedulerOutput, error: TrnrtEngineError) -> None:
        """End every request of a step that raised; the others go on."""
        self._metrics.steps += 1
        for request in self._land(plan):
            if request.status is RequestStatus.FINISHED:
                self._release_when_landed(request)
            else:
                self._fail(request, error)

    def take_deltas(self) -> list[TokenDelta]:
        """Hand out what happened since the last call."""
        return self._outbox.take()

    def check_integrity(self) -> None:
        """Prove that pages, slots and request states add up.

        Raises:
            IntegrityError: they do not; the message says what is lost.
        """
        flying = {id(r): r for _, requests in self._in_flight for r in requests}
        holders = {id(r): r for r in (*self.running, *flying.values())}
        self._cache.check_integrity(_held(request) for request in holders.values())
        for request in self.running:
            if request.status is not RequestStatus.RUNNING:
                raise IntegrityError(f"a running request is {request.status}")
            num_pages = len(_held(request).page_ids)
            if num_pages != self._cache.pages_for(request.num_computed_tokens):
                raise IntegrityError(f"{num_pages} pages for {request.num_computed_tokens} tokens")
        if any(r.status is not RequestStatus.WAITING or r.cache for r in self.waiting):
            raise IntegrityError("a waiting request holds something or is not waiting")
        live = {id(r) for r in (*self.running, *self.waiting)}
        if live != {id(r) for r in self._by_id.values()}:
            raise IntegrityError("the requests by id are not those waiting and running")

    def _watch_deadline(self, request: Request, deadline_at_s: float) -> None:
        if len(self._deadlines) > 2 * len(self._by_id):
            alive = [e for e in self._deadlines if e[2].status is not RequestStatus.FINISHED]
            heapq.heapify(alive)
            self._deadlines = alive
        heapq.heappush(self._deadlines, (deadline_at_s, next(self._serial), request))

    def _expire(self, now_s: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, _, request = heapq.heappop(self._deadlines)
            if request.status is RequestStatus.RUNNING:
                self._finish(request, FinishReason.LENGTH)
            elif request.status is RequestStatus.WAITING:
                deadline_s = request.spec.deadline_s
                self._fail(request, DeadlineExceeded(f"not started within {deadline_s:g} s"))

    def _admit(self, now_s: float) -> None:
        for request in list(self.waiting):
            if len(self.running) >= self._max_num_seqs:
                return
            cache = self._cache.admit(request.admission)
            if cache is None and self._cache.is_loading(request.admission):
                continue
            if cache is None:
                return
            self.waiting.remove(request)
            request.start(cache)
            self.running.append(request)
            self._metrics.queue_s.observe(now_s - request.arrival_s)

    def _next_prefill(self) -> Request | None:
        """Return whose chunk is next: the oldest's and the shortest's in turn."""
        prefilling = [request for request in self.running if request.is_prefilling]
        if not prefilling:
            return None
        if self._num_chunks % 2 == 0:
            return prefilling[0]
        return min(prefilling, key=lambda r: r.num_prompt_tokens - r.num_computed_tokens)

    def _plan_prefill(self, request: Request) -> SchedulerOutput:
        cache, start = _held(request), request.num_computed_tokens
        self._num_chunks += 1
        end = min(start + self._chunk_tokens, request.num_prompt_tokens)
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

    def _land(self, plan: SchedulerOutput) -> list[Request]:
        if not self._in_flight or self._in_flight[0][0] is not plan:
            raise IntegrityError(f"step {plan.step_id} is not the oldest in flight")
        _, requests = self._in_flight.popleft()
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
            self.running.remove(request)
        request.status = RequestStatus.FINISHED
        del self._by_id[request.request_id]
        self._release_when_landed(request)

    def _release_when_landed(self, request: Request) -> None:
        if request.cache is not None and request.num_steps_in_flight == 0:
            self._cache.release(request.cache)
            request.cache = None


def _held(request: Request) -> SequenceCache:
    if request.cache is None:
        raise IntegrityError("a request that runs or is in flight holds no room in the caches")
    return request.cache
