"""A scheduler driven in virtual time, integrity checked after every step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from support.paged_counter import VOCAB_SIZE, PagedCounter, QuickModel
from trnrt_engine.api import EngineRequest, SamplingParams, TokenDelta
from trnrt_engine.cache.manager import CacheManager
from trnrt_engine.cache.swap import SwapSettings
from trnrt_engine.errors import StepFailed
from trnrt_engine.intake import RequestLimits, make_request
from trnrt_engine.metrics import EngineMetrics
from trnrt_engine.plan import SchedulerOutput, StepResult
from trnrt_engine.scheduler import Scheduler
from trnrt_engine.stall_budget import StallBudget
from trnrt_engine.step_times import StepTimes

NUM_SCRATCH = 4


class VirtualEngine:
    """The engine's loop without threads or tensors, in virtual time.

    Args:
        prefill_buckets: None = every multiple of the grid up to `token_budget`.
        step_s: seconds of a step. cost: seconds of each plan, instead.
        stall_s: budget between two tokens of a stream; None = one step beside the decode.
        checks_every: integrity is checked after so many operations.
        depth: plans made ahead of results, 0 or 1.
        num_bundle_slots: None = no prefix cache.
        swap_bytes: host memory for preempted sequences; 0 = they compute again.
        keeps_turns: the ends of sessions' turns are kept.
        copy_delay: called in the copy thread before each copy.
    """

    def __init__(
        self,
        *,
        num_pages: int = 32,
        page_size: int = 16,
        max_num_seqs: int = 4,
        prefill_ahead: int = 0,
        token_budget: int = 64,
        prefill_buckets: tuple[int, ...] | None = None,
        context_buckets: tuple[int, ...] = (512,),
        max_model_len: int = 256,
        eos_token_ids: tuple[int, ...] = (),
        depth: int = 0,
        step_s: float = 0.01,
        stall_s: float | None = None,
        cost: Callable[[SchedulerOutput], float] | None = None,
        checks_every: int = 1,
        model: PagedCounter | QuickModel | None = None,
        num_bundle_slots: int | None = None,
        swap_bytes: int = 0,
        keeps_turns: bool = True,
        copy_delay: Callable[[], None] | None = None,
    ) -> None:
        self.now_s = 100.0
        self.metrics = EngineMetrics()
        self.model = model or PagedCounter(page_size=page_size)
        swap = None
        if isinstance(self.model, PagedCounter):
            swap = SwapSettings(device=self.model, budget_bytes=swap_bytes, delay=copy_delay)
        self.cache = CacheManager(
            num_pages=num_pages,
            page_size=page_size,
            num_state_slots=max_num_seqs + prefill_ahead + depth,
            num_scratch=NUM_SCRATCH,
            num_bundle_slots=num_bundle_slots,
            cache_id=b"virtual",
            swap=swap,
            keeps_turns=keeps_turns,
            clock=lambda: self.now_s,
        )
        self.scheduler = Scheduler(
            cache=self.cache,
            metrics=self.metrics,
            max_num_seqs=max_num_seqs,
            prefill_ahead=prefill_ahead,
            stall_budget=StallBudget(
                StepTimes(
                    prefill_buckets=prefill_buckets or range(64, token_budget + 1, 64),
                    decode_buckets=range(1, max_num_seqs + 1),
                    context_buckets=context_buckets,
                ),
                budget_s=2.5 * step_s if stall_s is None else stall_s,
                metrics=self.metrics,
            ),
            clock=lambda: self.now_s,
        )
        self.limits = RequestLimits(
            vocab_size=VOCAB_SIZE,
            max_model_len=max_model_len,
            num_pages=num_pages,
            page_size=page_size,
            eos_token_ids=eos_token_ids,
        )
        self.deltas: dict[str, list[TokenDelta]] = {}
        self.plans: list[SchedulerOutput] = []
        self._depth = depth
        self._step_s = step_s
        self._cost = cost
        self._free_s = self.now_s
        self._checks_every = checks_every
        self._num_settled = 0
        self._in_flight: deque[tuple[SchedulerOutput, StepResult | None, float]] = deque()

    def submit(self, request_id: str, prompt: list[int], **fields) -> None:
        """Check and queue a request; sampling fields and request fields may be mixed."""
        of_request = set(EngineRequest.__struct_fields__)
        sampling = {k: v for k, v in fields.items() if k not in of_request}
        spec = EngineRequest(
            request_id=request_id,
            token_ids=prompt,
            sampling=SamplingParams(**{"temperature": 0.0, **sampling}),
            **{k: v for k, v in fields.items() if k in of_request},
        )
        self.scheduler.add(make_request(spec, self.limits, arrival_s=self.now_s))
        self._settle()

    def abort(self, request_id: str) -> None:
        """Abort between two steps."""
        self.scheduler.abort(request_id)
        self._settle()

    def step(self, *, fails: bool = False) -> bool:
        """Plan, run and commit one step; False when there was nothing to do."""
        plan = self.scheduler.schedule()
        if plan is not None:
            self.note_plan(plan)
            if fails:
                self.model.skip()
            step_s = self._step_s if self._cost is None else self._cost(plan)
            self._free_s = max(self._free_s, self.now_s) + step_s
            result = None if fails else self.model.run(plan)
            self._in_flight.append((plan, result, self._free_s))
        elif not self._in_flight:
            self.cache.wait_for_copies(1.0)
            self.now_s += self._step_s
        while len(self._in_flight) > (self._depth if plan is not None else 0):
            landed, result, landed_s = self._in_flight.popleft()
            self.now_s = max(self.now_s, landed_s)
            if result is None:
                self.scheduler.fail(landed, StepFailed("boom"))
            else:
                self.scheduler.commit(landed, result)
        self._settle()
        return plan is not None

    def note_plan(self, plan: SchedulerOutput) -> None:
        """Take in a plan that was made."""
        self.plans.append(plan)

    def note_delta(self, delta: TokenDelta) -> None:
        """Take in what a request was told."""
        self.deltas.setdefault(delta.request_id, []).append(delta)

    def run_until_idle(self, *, max_steps: int = 10_000) -> None:
        """Step until no request is left."""
        for _ in range(max_steps):
            if not self.step() and not self.scheduler.has_work:
                return
        raise AssertionError(f"still busy after {max_steps} steps")

    def tokens(self, request_id: str) -> list[int]:
        """All tokens handed out for a request."""
        return [t for delta in self.deltas.get(request_id, []) for t in delta.token_ids]

    def end(self, request_id: str) -> TokenDelta:
        """The last delta of a request that has ended."""
        (last,) = (d for d in self.deltas[request_id] if d.finish_reason is not None)
        assert self.deltas[request_id][-1] is last
        return last

    def is_empty(self) -> bool:
        """Every page and slot is free, once what is cached is forgotten."""
        while self.cache.is_copying:
            self.cache.wait_for_copies(1.0)
            self.cache.poll()
        self.cache.flush()
        self.cache.check_integrity([])
        return (
            self.cache.num_free_pages == self.cache.num_pages
            and self.cache.num_free_state_slots == self.cache.num_state_slots
        )

    def _settle(self) -> None:
        for delta in self.scheduler.take_deltas():
            self.note_delta(delta)
        self._num_settled += 1
        if self._num_settled % self._checks_every == 0:
            self.scheduler.check_integrity()
