"""The heart of an engine: scheduler, runner and caches, and what a step does with them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from trnrt_engine.api import EngineInfo, EngineStats, TokenDelta
from trnrt_engine.cache.manager import CacheManager
from trnrt_engine.cache.report import Reason
from trnrt_engine.errors import StepFailed
from trnrt_engine.intake import RequestLimits
from trnrt_engine.metrics import EngineMetrics
from trnrt_engine.plan import SchedulerOutput, StepResult
from trnrt_engine.scheduler import Scheduler

logger = logging.getLogger(__name__)

COPY_WAIT_S = 0.005  # a new request or an abort waits at most so long for a copy


class StepHandle(Protocol):
    """A step that was launched."""

    def result(self) -> StepResult:
        """Wait for the step and return what it drew; raises what the step raised."""


class StepRunner(Protocol):
    """Executes plans, in the order they are launched."""

    def launch(self, plan: SchedulerOutput) -> StepHandle:
        """Start a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCore:
    """What the loop drives; made in the loop's own thread.

    Fields:
        num_steps_ahead: plans launched before the result of the one before is taken, 0 or 1.
    """

    scheduler: Scheduler
    runner: StepRunner
    cache: CacheManager
    metrics: EngineMetrics
    limits: RequestLimits
    info: EngineInfo
    num_steps_ahead: int = 0


class Stepper:
    """Plan, launch and commit steps; a step that raises ends its requests and nothing else."""

    def __init__(self, core: EngineCore, *, clock: Callable[[], float]) -> None:
        self._core = core
        self._clock = clock
        self._in_flight: deque[tuple[SchedulerOutput, StepHandle]] = deque()
        self._started_s: float | None = None

    def running_s(self) -> float | None:
        """Say how long the step under way has been running; None between steps. Any thread."""
        started_s = self._started_s
        return None if started_s is None else self._clock() - started_s

    def step(self) -> list[TokenDelta]:
        """Do one step and return what happened to requests since the last one."""
        scheduler = self._core.scheduler
        plan = scheduler.schedule()
        started_s = self._started_s = self._clock()
        if plan is not None:
            self._in_flight.append((plan, self._launch(plan)))
        num_ahead = self._core.num_steps_ahead if plan is not None else 0
        while len(self._in_flight) > num_ahead:
            self._land(*self._in_flight.popleft())
        if plan is not None:
            self._core.metrics.step_s.observe(self._clock() - started_s)
        self._started_s = None
        if plan is None:
            self._core.cache.wait_for_copies(COPY_WAIT_S)
        return scheduler.take_deltas()

    def _launch(self, plan: SchedulerOutput) -> StepHandle:
        try:
            return self._core.runner.launch(plan)
        except Exception as error:
            return _FailedLaunch(error)

    def _land(self, plan: SchedulerOutput, handle: StepHandle) -> None:
        try:
            result = handle.result()
        except Exception as error:
            logger.exception("step failed step=%d tokens=%d", plan.step_id, plan.num_tokens)
            failure = StepFailed(f"the step failed: {type(error).__name__}: {error}")
            self._core.scheduler.fail(plan, failure)
            return
        self._core.scheduler.commit(plan, result)
        logger.debug(
            "step done step=%d kind=%s tokens=%d",
            *(plan.step_id, "prefill" if plan.prefill else "decode", plan.num_tokens),
        )


class _FailedLaunch:
    """Stand in for a step that raised at launch, so that steps land in order."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def result(self) -> StepResult:
        raise self._error


def stats_of(core: EngineCore) -> EngineStats:
    """Take a snapshot of a core; may be called from any thread."""
    metrics, cache, scheduler = core.metrics, core.cache, core.scheduler
    counters, below, swapped = cache.counters, cache.tier_counters, cache.swap_counters
    return EngineStats(
        num_waiting=len(scheduler.waiting),
        num_running=len(scheduler.running),
        free_pages=cache.num_free_pages,
        total_pages=cache.num_pages,
        cached_pages=cache.num_cached_pages,
        free_state_slots=cache.num_free_state_slots,
        total_state_slots=cache.num_state_slots,
        num_bundles=cache.num_bundles,
        steps=metrics.steps,
        prompt_tokens=metrics.prompt_tokens,
        generation_tokens=metrics.generation_tokens,
        requests_finished=metrics.requests_finished,
        requests_failed=metrics.requests_failed,
        requests_aborted=metrics.requests_aborted,
        cache_hit_tokens=counters.hit_tokens,
        cache_lookups={reason.value: counters.lookups[reason] for reason in Reason},
        evicted_pages=counters.evicted_pages,
        evicted_bundles=counters.evicted_bundles,
        skipped_bundles=counters.skipped_bundles,
        cache_tier_hit_tokens=dict(counters.tier_hit_tokens),
        cache_bytes_written=dict(below.bytes_written),
        cache_bytes_loaded=dict(below.bytes_loaded),
        cache_skipped_writes=below.skipped_writes,
        cache_failed_writes=below.failed_writes,
        cache_loads=below.loads,
        cache_late_loads=below.late_loads,
        cache_failed_loads=below.failed_loads,
        stall_overruns=metrics.stall_overruns,
        preemptions=dict(swapped.preemptions),
        resumes=dict(swapped.resumes),
        swapped_bytes=dict(swapped.bytes_copied),
        failed_swaps=swapped.failed,
        queue_s=metrics.queue_s.snapshot(),
        time_to_first_token_s=metrics.time_to_first_token_s.snapshot(),
        inter_token_s=metrics.inter_token_s.snapshot(),
        step_s=metrics.step_s.snapshot(),
    )
