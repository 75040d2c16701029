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

A sequence is admitted when there is room for its prompt, and takes more pages as it grows; who
gives way when there are none is the affair of `preemption.py`. What a request of a session leaves
for its next turn is copied with the next step (`turn_saver.py`), which may be nothing else.
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
from trnrt_engine.preemption import Preemption, may_wait
from trnrt_engine.progress import progress_of
from trnrt_engine.request import Request, RequestStatus
from trnrt_engine.stall_budget import StallBudget
from trnrt_engine.turn_saver import TurnSaver
from trnrt_engine.waiting import PrefillTurns, WaitingQueue
from trnrt_kernels.serving import GRID

MAX_STEPS_IN_FLIGHT = 2
STANDSTILL_S = 120.0  # without a step, though there is work and copies seem to be under way


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
        self._preemption = Preemption(cache, self._admitted, self.waiting)
        self._turn_ends = TurnSaver(cache)
        self._stuck_since_s: float | None = None

    @property
    def has_work(self) -> bool:
        """Something waits, runs, is in flight or is to be kept."""
        return bool(self._by_id or self._in_flight or self._turn_ends.is_waiting)

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

    def preempt(self, request_id: str) -> bool:
        """Take a running request's room away when its steps have landed; False if none runs so."""
        request = self._by_id.get(request_id)
        if request is None or request.status is not RequestStatus.RUNNING:
            return False
        self._preemption.preempt(request)
        return True

    def schedule(self) -> SchedulerOutput | None:
        """Plan the next step; None when there is nothing to compute now."""
        if len(self._in_flight) >= MAX_STEPS_IN_FLIGHT:
            raise IntegrityError(f"{len(self._in_flight)} steps in flight: commit one first")
        now_s = self._clock()
        self._cache.poll()
        self._expire(now_s)
        self._preemption.preempt_landed()
        self._take_loaded(now_s)
        if self._preemption.serve_short():
            self._admit(now_s)
        prefilling, decoding = self._admitted.prefilling(), self._admitted.decoding()
        chunk_of, num_tokens = self._choose_chunk(prefilling, decoding, now_s)
        if not num_tokens and decoding:
            decoding = self._preemption.with_pages(decoding)
            prefilling = self._admitted.prefilling()
            if not decoding:  # all wait for a page, nobody for the end of a chunk
                chunk_of, num_tokens = self._choose_chunk(prefilling, [], now_s)
        if chunk_of is not None and num_tokens:
            plan, requests = self._plan_prefill(chunk_of, num_tokens), [chunk_of]
        elif decoding:
            plan, requests = self._plan_decode(decoding), decoding
        elif self._turn_ends.is_waiting:
            plan, requests = self._plan(), []
        else:
            self._check_standstill(now_s)
            return None
        for request in requests:
            request.num_steps_in_flight += 1
        if requests:
            self._stall_budget.plan_step(plan, is_prefilling=bool(prefilling), now_s=now_s)
        self._stuck_since_s = None
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
                self._cache.discard(request.room)
                self._fail(request, NonFiniteOutput("the model's output for it is not finite"))
                continue
            if chunk is not None:
                request.num_prefilled_tokens = chunk.start + len(chunk.token_ids)
                self._cache.publish(request.room, request.num_prefilled_tokens)
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
        waiting = [r for r in self.waiting.in_order() if r.last_token_s is None]
        return progress_of(self.running, waiting, tokens_per_s=self.prefill_tokens_per_s)

    def check_integrity(self) -> None:
        """Prove that pages, slots and request states add up.

        Raises:
            IntegrityError: they do not; the message says what is lost.
        """
        flying = {id(r): r for _, requests in self._in_flight for r in requests}
        kept = self._turn_ends.holders()
        holders = {id(r): r for r in (*self.running, *flying.values(), *kept)}
        self._cache.check_integrity(request.room for request in holders.values())
        self._admitted.check_integrity()
        for request in self.running:
            num_pages = len(request.room.page_ids)
            if num_pages != self._cache.pages_for(request.num_computed_tokens):
                raise IntegrityError(f"{num_pages} pages for {request.num_computed_tokens} tokens")
        if any(not may_wait(r) or r.cache for r in self.waiting):
            raise IntegrityError("a waiting request holds something or is not waiting")
        live = {id(r) for r in (*self.running, *self.waiting)}
        if live != {id(r) for r in self._by_id.values()}:
            raise IntegrityError("the requests by id are not those waiting and running")

    def _expire(self, now_s: float) -> None:
        for request in self._deadlines.take_expired(now_s):
            if request.status in (RequestStatus.RUNNING, RequestStatus.PREEMPTED):
                self._finish(request, FinishReason.LENGTH)
            else:
                deadline_s = request.spec.deadline_s
                self._fail(request, DeadlineExceeded(f"not started within {deadline_s:g} s"))

    def _take_loaded(self, now_s: float) -> None:
        """Go on with those whose load has ended: they have their room, or ask for it again."""
        for request in self.waiting.aside:
            if self._cache.is_loading(request.admission):
                continue
            room = self._cache.take_loaded(request.admission)
            if room is not None:
                self.waiting.remove(request)
                self._start(request, room, now_s)
            else:
                self.waiting.put_back(request)

    def _admit(self, now_s: float) -> None:
        waiting = self.waiting
        while self._admitted.num_free_places(num_coming=self._cache.num_resuming) > 0:
            next_one = waiting.next()
            if next_one is None:
                return
            num_coming = self._cache.num_resuming
            if not self._admitted.has_seat_for(next_one, num_coming=num_coming):
                return
            room = self._cache.admit(next_one.admission)
            if room is not None:
                waiting.take(next_one)
                self._start(next_one, room, now_s)
            elif self._cache.is_loading(next_one.admission):
                waiting.set_aside(next_one)
            else:
                return

    def _start(self, request: Request, room: SequenceCache, now_s: float) -> None:
        """Let a request run that was given room, for the first time or again."""
        if request.status is RequestStatus.PREEMPTED:
            self._cache.count_resume(room)
        else:
            self._metrics.queue_s.observe(now_s - request.arrival_s)
        request.start(room)
        self._admitted.enter(request)

    def _check_standstill(self, now_s: float) -> None:
        """Report requests that nobody will ever serve.

        Raises:
            IntegrityError: there are some.
        """
        if not self._by_id or self._in_flight:
            self._stuck_since_s = None
            return
        if self._stuck_since_s is None:
            self._stuck_since_s = now_s
        is_copying = self._cache.is_copying
        if not is_copying or now_s - self._stuck_since_s > STANDSTILL_S:
            raise IntegrityError(
                f"{len(self._by_id)} requests and none can make progress: "
                f"{len(self.running)} running, {len(self.waiting)} waiting, "
                f"{self._cache.num_free_pages} free pages, copies under way: {is_copying}"
            )

    def _choose_chunk(
        self, prefilling: list[Request], decoding: list[Request], now_s: float
    ) -> tuple[Request | None, int]:
        """Return whose chunk is next and its tokens; none of them when a decode comes first."""
        if not prefilling:
            return None, 0
        request = self._turns.next(prefilling)
        start, remaining = request.num_computed_tokens, request.num_prefill_tokens
        decode = ending = None
        if decoding:
            shape_of = self._stall_budget.times.decode_shape
            # Who waits for a seat may have one by then.
            contexts = [r.num_computed_tokens for r in self.running if not r.can_prefill]
            context = max(contexts) + 1
            decode = shape_of(len(decoding), context)
            if self._admitted.has_free_seat:  # who is computed to its end decodes, too
                ending = shape_of(len(decoding) + 1, max(context, start + remaining + 1))
        if start % GRID:  # where a turn ended: first back to the grid
            remaining = min(remaining, GRID - start % GRID)
        num_tokens = self._stall_budget.plan_chunk(
            start, remaining, decode, ending=ending, now_s=now_s
        )
        return request, num_tokens

    def _plan_prefill(self, request: Request, num_tokens: int) -> SchedulerOutput:
        cache, start = request.room, request.num_computed_tokens
        self._turns.count()
        self._shares.count(request.tenant, num_tokens, is_promised=True)
        end = start + num_tokens
        if not self._cache.grow(cache, end):
            raise IntegrityError(f"no page for a prompt of {request.num_prompt_tokens} tokens")
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
        return self._plan(prefill=chunk)

    def _plan_decode(self, requests: list[Request]) -> SchedulerOutput:
        previous = self._in_flight[-1][1] if self._in_flight else []
        rows = []
        for request in requests:
            cache, position = request.room, request.num_computed_tokens
            self._shares.count(request.tenant, 1, is_promised=False)
            token_id = request.next_token_id()
            index = request.next_output_index
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
                    is_first=position == cache.num_cached_tokens,
                )
            )
        return self._plan(decode=tuple(rows))

    def _plan(
        self, *, prefill: PrefillChunk | None = None, decode: tuple[DecodeRow, ...] = ()
    ) -> SchedulerOutput:
        step_id = next(self._serial)
        return SchedulerOutput(step_id, prefill, decode, self._turn_ends.take(step_id))

    def _land(
        self, plan: SchedulerOutput, now_s: float, *, has_failed: bool = False
    ) -> list[Request]:
        if not self._in_flight or self._in_flight[0][0] is not plan:
            raise IntegrityError(f"step {plan.step_id} is not the oldest in flight")
        _, requests = self._in_flight.popleft()
        if requests:
            self._stall_budget.land_step(now_s=now_s, has_failed=has_failed)
        for request in requests:
            request.num_steps_in_flight -= 1
        for request in self._turn_ends.land(plan.step_id, is_saved=not has_failed):
            self._give_back(request)
        return requests

    def _take_token(self, request: Request, result: StepResult, *, row: int, now_s: float) -> None:
        token_id = result.token_ids[row]
        request.output_token_ids.append(token_id)
        reason = request.finish_reason_of(token_id)
        self._outbox.put_token(request, result, row=row, reason=reason, now_s=now_s)
        if reason is not None:
            request.is_whole = True
            self._retire(request)

    def _fail(self, request: Request, error: TrnrtEngineError) -> None:
        self._finish(request, FinishReason.ERROR, error=error.as_request_error())

    def _finish(
        self, request: Request, reason: FinishReason, *, error: RequestError | None = None
    ) -> None:
        self._outbox.put_end(request, reason, error=error)
        self._retire(request)

    def _retire(self, request: Request) -> None:
        if may_wait(request) and request in self.waiting:
            self.waiting.remove(request)
            self._cache.withdraw(request.admission)
        elif request.status is RequestStatus.RUNNING:
            self._admitted.leave(request)
        request.status = RequestStatus.FINISHED
        del self._by_id[request.request_id]
        self._shares.leave(request.tenant)
        self._release_when_landed(request)

    def _release_when_landed(self, request: Request) -> None:
        if request.cache is None or request.num_steps_in_flight:
            return
        if not self._turn_ends.offer(request):
            self._give_back(request)

    def _give_back(self, request: Request) -> None:
        self._cache.release(request.room)
        request.cache = None
