"""A scheduler driven in virtual time, integrity checked after every step."""

from __future__ import annotations

from collections import deque

from support.paged_counter import VOCAB_SIZE, PagedCounter, QuickModel
from trnrt_engine.api import EngineRequest, SamplingParams, TokenDelta
from trnrt_engine.cache.manager import CacheManager
from trnrt_engine.errors import StepFailed
from trnrt_engine.intake import RequestLimits, make_request
from trnrt_engine.metrics import EngineMetrics
from trnrt_engine.plan import SchedulerOutput, StepResult
from trnrt_engine.scheduler import Scheduler

NUM_SCRATCH = 4


class VirtualEngine:
    """The engine's loop without threads or tensors; a step takes `step_s` of virtual time.

    Args:
        depth: plans made ahead of results, 0 or 1.
        num_bundle_slots: None = no prefix cache.
    """

    def __init__(
        self,
        *,
        num_pages: int = 32,
        page_size: int = 16,
        max_num_seqs: int = 4,
        token_budget: int = 64,
        max_model_len: int = 256,
        eos_token_ids: tuple[int, ...] = (),
        depth: int = 0,
        step_s: float = 0.01,
        model: PagedCounter | QuickModel | None = None,
        num_bundle_slots: int | None = None,
    ) -> None:
        self.now_s = 100.0
        self.metrics = EngineMetrics()
        self.cache = CacheManager(
            num_pages=num_pages,
            page_size=page_size,
            num_state_slots=max_num_seqs + depth,
            num_scratch=NUM_SCRATCH,
            num_bundle_slots=num_bundle_slots,
            cache_id=b"virtual",
            clock=lambda: self.now_s,
        )
        self.scheduler = Scheduler(
            cache=self.cache,
            metrics=self.metrics,
            max_num_seqs=max_num_seqs,
            token_budget=token_budget,
            clock=lambda: self.now_s,
        )
        self.limits = RequestLimits(
            vocab_size=VOCAB_SIZE,
            max_model_len=max_model_len,
            num_pages=num_pages,
            page_size=page_size,
            eos_token_ids=eos_token_ids,
        )
        self.model = model or PagedCounter(page_size=page_size)
        self.deltas: dict[str, list[TokenDelta]] = {}
        self.plans: list[SchedulerOutput] = []
        self._depth = depth
        self._step_s = step_s
        self._in_flight: deque[tuple[SchedulerOutput, StepResult | None]] = deque()

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
            self.plans.append(plan)
            if fails:
                self.model.skip()
            self._in_flight.append((plan, None if fails else self.model.run(plan)))
        self.now_s += self._step_s
        while len(self._in_flight) > (self._depth if plan is not None else 0):
            landed, result = self._in_flight.popleft()
            if result is None:
                self.scheduler.fail(landed, StepFailed("boom"))
            else:
                self.scheduler.commit(landed, result)
        self._settle()
        return plan is not None

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
        self.cache.flush()
        self.cache.check_integrity([])
        return (
            self.cache.num_free_pages == self.cache.num_pages
            and self.cache.num_free_state_slots == self.cache.num_state_slots
        )

    def _settle(self) -> None:
        for delta in self.scheduler.take_deltas():
            self.deltas.setdefault(delta.request_id, []).append(delta)
        self.scheduler.check_integrity()
