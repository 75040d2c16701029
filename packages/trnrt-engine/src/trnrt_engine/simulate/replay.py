"""Runs a trace through the engine's scheduler and caches in virtual time; no model, no tensors.

What is simulated is when steps and copies end (`CostModel`) and what a model draws (nothing is
read from it: every request runs to its recorded length). Admission, lookup, chunks, export,
publication, eviction, write-through and load-back are the engine's own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from trnrt_engine.api import EngineRequest, SamplingParams, TokenDelta
from trnrt_engine.cache.manager import CacheManager
from trnrt_engine.cache.report import DISK, HOST, MatchReport
from trnrt_engine.cache.tiers import LowerTiers
from trnrt_engine.core import COPY_WAIT_S
from trnrt_engine.errors import TrnrtEngineError
from trnrt_engine.intake import RequestLimits, make_request
from trnrt_engine.metrics import EngineMetrics
from trnrt_engine.plan import SchedulerOutput, StepResult
from trnrt_engine.scheduler import Scheduler
from trnrt_engine.simulate.arrivals import Arrivals
from trnrt_engine.simulate.costs import CostModel
from trnrt_engine.simulate.endless import EndlessCache
from trnrt_engine.simulate.lengths import LengthBytes, LengthStore, VirtualCopies
from trnrt_engine.simulate.sizes import EngineSizes
from trnrt_engine.simulate.trace import TraceRequest
from trnrt_engine.stall_budget import StallBudget
from trnrt_engine.step_times import StepTimes

VOCAB_SIZE = 2**31
CACHE_ID = bytes(32)


@dataclass(slots=True)
class RequestOutcome:
    """What became of one request; times are virtual.

    Fields:
        match: what admission found; endless_tokens: what a cache that never evicts would have hit.
        refused: why it never ran; empty if it did.
    """

    request: TraceRequest
    sent_s: float
    started_s: float = 0.0
    first_token_s: float = 0.0
    ended_s: float = 0.0
    match: MatchReport | None = None
    endless_tokens: int = 0
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How full the caches are at one moment.

    Fields:
        held_pages: of running sequences. cached_pages: that nobody holds.
    """

    time_s: float
    held_pages: int
    cached_pages: int
    num_bundles: int
    host_bytes: int
    disk_bytes: int


class Replay:
    """One run of a trace; made once, run once.

    Attributes:
        outcomes: by request id, in the order they were sent.
        timeline: occupancy whenever a request started or ended.
    """

    def __init__(
        self,
        requests: Sequence[TraceRequest],
        sizes: EngineSizes,
        costs: CostModel | None = None,
        *,
        num_lanes: int | None = None,
    ) -> None:
        self.sizes = sizes
        self.now_s = 0.0
        self.outcomes: dict[str, RequestOutcome] = {}
        self.timeline: list[Occupancy] = []
        self._costs = costs or CostModel()
        self._arrivals = Arrivals(requests, num_lanes=num_lanes)
        self._endless = EndlessCache()
        self._queues: list[VirtualCopies] = []
        self._host = LengthStore.host(sizes.host_bytes) if sizes.host_bytes else None
        self._disk = LengthStore.disk(sizes.disk_bytes) if sizes.disk_bytes else None
        self.cache = self._make_cache()
        self.metrics = EngineMetrics()
        self._scheduler = Scheduler(
            cache=self.cache,
            metrics=self.metrics,
            max_num_seqs=sizes.shape.max_num_seqs,
            prefill_ahead=sizes.shape.prefill_ahead,
            stall_budget=StallBudget(
                StepTimes(
                    prefill_buckets=sizes.shape.prefill_buckets,
                    decode_buckets=sizes.shape.decode_buckets,
                    context_buckets=sizes.shape.context_buckets,
                ),
                budget_s=sizes.max_decode_stall_ms / 1e3,
                metrics=self.metrics,
            ),
            clock=lambda: self.now_s,
        )
        self._limits = RequestLimits(
            vocab_size=VOCAB_SIZE,
            max_model_len=sizes.shape.max_model_len,
            num_pages=sizes.num_pages,
            page_size=sizes.page_size,
            eos_token_ids=(),
        )

    def run(self) -> None:
        """Replay the trace to its end, the last copies included."""
        while True:
            self._submit_sent()
            if not (self._scheduler.has_work or self.cache.is_copying):
                if self._arrivals.next_s is None:
                    return
                self.now_s = max(self.now_s, self._arrivals.next_s)
                continue
            plan = self._scheduler.schedule()
            self._note_starts()
            if plan is None:
                self._skip_to_next()
                continue
            self.now_s += self._costs.step_s(plan)
            self._scheduler.commit(plan, _drawn(plan))
            for delta in self._scheduler.take_deltas():
                self._note(delta)

    def _make_cache(self) -> CacheManager:
        sizes = self.sizes
        has_tiers = self._host is not None or self._disk is not None
        device = LengthBytes(
            page_bytes=sizes.page_bytes, state_bytes=sizes.state_bytes, page_size=sizes.page_size
        )
        return CacheManager(
            num_pages=sizes.num_pages,
            page_size=sizes.page_size,
            num_state_slots=sizes.shape.max_live_seqs,
            num_scratch=0,
            num_bundle_slots=sizes.num_bundle_slots,
            cache_id=CACHE_ID,
            lower=LowerTiers(
                device=device, host=self._host, disk=self._disk, make_copies=self._make_copies
            )
            if has_tiers
            else None,
            clock=lambda: self.now_s,
        )

    def _make_copies(self, max_bytes_in_flight: int) -> VirtualCopies:
        copies = VirtualCopies(
            max_bytes_in_flight=max_bytes_in_flight,
            copy_s=lambda store, num_bytes: self._costs.copy_s(
                HOST if store is self._host else DISK, num_bytes
            ),
            clock=lambda: self.now_s,
        )
        self._queues.append(copies)
        return copies

    def _submit_sent(self) -> None:
        for sent_s, asked in self._arrivals.take(self.now_s):
            outcome = self.outcomes[asked.id] = RequestOutcome(asked, sent_s)
            spec = EngineRequest(
                request_id=asked.id,
                # Only sliced and counted, as any sequence can be.
                token_ids=cast("list[int]", asked.prompt(VOCAB_SIZE)),
                sampling=SamplingParams(max_tokens=asked.num_output_tokens, ignore_eos=True),
                marks=asked.marks,
                cache_salt=asked.salt,
            )
            try:
                request = make_request(spec, self._limits, arrival_s=sent_s)
            except TrnrtEngineError as error:
                outcome.refused = str(error)
                self._arrivals.end(asked, sent_s)
                continue
            self._scheduler.add(request)

    def _note_starts(self) -> None:
        has_started = False
        for request in self._scheduler.running:
            outcome = self.outcomes[request.request_id]
            if outcome.match is None:
                outcome.match, outcome.started_s, has_started = request.match, self.now_s, True
                outcome.endless_tokens = self._endless.hit_tokens(outcome.request)
        if has_started:
            self._note_occupancy()

    def _note(self, delta: TokenDelta) -> None:
        outcome = self.outcomes[delta.request_id]
        if delta.token_ids and delta.num_output_tokens == 1:
            outcome.first_token_s = self.now_s
            self._endless.add(outcome.request)
        if delta.finish_reason is None:
            return
        if delta.error is not None:
            outcome.refused = delta.error.message
        outcome.ended_s = self.now_s
        self._arrivals.end(outcome.request, self.now_s)
        self._note_occupancy()

    def _note_occupancy(self) -> None:
        cache = self.cache
        cached = cache.num_cached_pages
        self.timeline.append(
            Occupancy(
                self.now_s,
                cache.num_pages - cache.num_free_pages - cached,
                cached,
                cache.num_bundles,
                self._host.num_bytes if self._host is not None else 0,
                self._disk.num_bytes if self._disk is not None else 0,
            )
        )

    def _skip_to_next(self) -> None:
        """Nothing can be computed now: let time pass until something is sent or copied.

        Copies that wait for a poll are polled for as the engine does.
        """
        events = [self.now_s + COPY_WAIT_S] if self.cache.is_copying else []
        events += [queue.next_end_s for queue in self._queues if queue.next_end_s is not None]
        events += [self._arrivals.next_s] if self._arrivals.next_s is not None else []
        self.now_s = max(self.now_s, min(events, default=0.0))


def _drawn(plan: SchedulerOutput) -> StepResult:
    """Return what a step draws: some token for each row that draws one."""
    num_rows = len(plan.decode)
    if plan.prefill is not None:
        num_rows = int(plan.prefill.samples)
    return StepResult(token_ids=[0] * num_rows, is_finite=[True] * num_rows)
