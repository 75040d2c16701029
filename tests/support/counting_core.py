"""An engine core on the model of plain ints, with gates to hold and fail its steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from support.paged_counter import VOCAB_SIZE, PagedCounter
from trnrt_engine.api import EngineInfo
from trnrt_engine.cache.manager import CacheManager
from trnrt_engine.core import EngineCore
from trnrt_engine.intake import RequestLimits
from trnrt_engine.metrics import EngineMetrics
from trnrt_engine.plan import SchedulerOutput, StepResult
from trnrt_engine.scheduler import Scheduler
from trnrt_engine.stall_budget import StallBudget
from trnrt_engine.step_times import StepTimes

NUM_SCRATCH = 4


class GatedRunner:
    """Run plans at their `result`; a test may hold the next step or make it raise.

    Attributes:
        is_held: set while a step waits at the closed gate.
        gate: steps pass while it is set.
        error: raised by the next step, once.
    """

    def __init__(self, *, page_size: int) -> None:
        self.model = PagedCounter(page_size=page_size)
        self.gate = threading.Event()
        self.gate.set()
        self.is_held = threading.Event()
        self.error: Exception | None = None
        self.plans: list[SchedulerOutput] = []

    def launch(self, plan: SchedulerOutput) -> GatedStep:
        """Queue a step."""
        self.plans.append(plan)
        return GatedStep(self, plan)


class GatedStep:
    """A step that runs when its result is asked for."""

    def __init__(self, runner: GatedRunner, plan: SchedulerOutput) -> None:
        self._runner = runner
        self._plan = plan

    def result(self) -> StepResult:
        """Pass the gate, then run."""
        runner = self._runner
        if not runner.gate.is_set():
            runner.is_held.set()
            runner.gate.wait()
            runner.is_held.clear()
        if runner.error is not None:
            error, runner.error = runner.error, None
            raise error
        return runner.model.run(self._plan)


def counting_core(
    runner: GatedRunner,
    *,
    num_pages: int = 64,
    page_size: int = 16,
    max_num_seqs: int = 4,
    max_model_len: int = 512,
    eos_token_ids: tuple[int, ...] = (),
    num_steps_ahead: int = 0,
    clock: Callable[[], float] = time.monotonic,
) -> EngineCore:
    """Put a scheduler, caches and the runner together."""
    metrics = EngineMetrics()
    cache = CacheManager(
        num_pages=num_pages,
        page_size=page_size,
        num_state_slots=max_num_seqs + num_steps_ahead,
        num_scratch=NUM_SCRATCH,
    )
    scheduler = Scheduler(
        cache=cache,
        metrics=metrics,
        max_num_seqs=max_num_seqs,
        stall_budget=StallBudget(
            StepTimes(
                prefill_buckets=(64,), decode_buckets=(max_num_seqs,), context_buckets=(512,)
            ),
            budget_s=0.5,
            metrics=metrics,
        ),
        clock=clock,
    )
    return EngineCore(
        scheduler=scheduler,
        runner=runner,
        cache=cache,
        metrics=metrics,
        limits=RequestLimits(
            vocab_size=VOCAB_SIZE,
            max_model_len=max_model_len,
            num_pages=num_pages,
            page_size=page_size,
            eos_token_ids=eos_token_ids,
        ),
        info=EngineInfo(
            model="counter",
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=eos_token_ids,
            backend="cpu",
            version="0",
        ),
        num_steps_ahead=num_steps_ahead,
    )
