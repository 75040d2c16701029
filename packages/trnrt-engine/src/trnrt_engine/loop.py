"""The engine's thread: the only place that touches the scheduler and the tensors.

Others talk to it through a queue of commands and hear from it through `deliver`, once a step.
It answers no questions: health and statistics are read from outside while a step runs.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from trnrt_engine.api import EngineInfo, EngineStats, TokenDelta
from trnrt_engine.cache.manager import CacheManager
from trnrt_engine.errors import StepFailed
from trnrt_engine.intake import RequestLimits
from trnrt_engine.metrics import EngineMetrics
from trnrt_engine.plan import SchedulerOutput, StepResult
from trnrt_engine.request import Request
from trnrt_engine.scheduler import Scheduler

logger = logging.getLogger(__name__)


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


@dataclass(frozen=True, slots=True)
class Abort:
    """Command: end the request of this id."""

    request_id: str


class Close:
    """Command: leave the loop after the step under way."""


Command = Request | Abort | Close


class EngineLoop:
    """Step as long as there is work, sleep when there is none.

    Args:
        build: makes the core; runs in the loop's thread.
        on_ready: called with the core once it is built.
        on_exit: called last, with the error that ended the loop or None after `Close`.
        deliver: called with the deltas of each step, never with none.
        clock: seconds, monotonic.

    The three callbacks run in the loop's thread.
    """

    def __init__(
        self,
        build: Callable[[], EngineCore],
        *,
        on_ready: Callable[[EngineCore], None],
        on_exit: Callable[[Exception | None], None],
        deliver: Callable[[list[TokenDelta]], None],
        clock: Callable[[], float],
    ) -> None:
        self._build = build
        self._on_ready = on_ready
        self._on_exit = on_exit
        self._deliver = deliver
        self._clock = clock
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._in_flight: deque[tuple[SchedulerOutput, StepHandle]] = deque()
        self._step_started_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="trnrt-engine-loop", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def send(self, command: Command) -> None:
        """Hand over a command; it is taken before the next step."""
        self._commands.put(command)

    def join(self) -> None:
        """Wait for the thread to end."""
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        """The thread runs."""
        return self._thread.is_alive()

    def step_running_s(self) -> float | None:
        """Say how long the step under way has been running; None between steps."""
        started_s = self._step_started_s
        return None if started_s is None else self._clock() - started_s

    def _run(self) -> None:
        try:
            core = self._build()
        except Exception as error:
            self._on_exit(error)
            return
        self._on_ready(core)
        try:
            while self._take_commands(core):
                self._step(core)
        except Exception as error:
            logger.exception("engine loop ended by an error")
            self._on_exit(error)
            return
        self._on_exit(None)

    def _take_commands(self, core: EngineCore) -> bool:
        """Execute what has been sent, waiting for it when idle; False after `Close`."""
        is_idle = not core.scheduler.has_work
        while is_idle or not self._commands.empty():
            match self._commands.get():
                case Close():
                    return False
                case Abort(request_id):
                    core.scheduler.abort(request_id)
                case Request() as request:
                    core.scheduler.add(request)
            is_idle = False
        return True

    def _step(self, core: EngineCore) -> None:
        plan = core.scheduler.schedule()
        self._step_started_s = self._clock()
        if plan is not None:
            self._launch(core, plan)
        num_ahead = core.num_steps_ahead if plan is not None else 0
        while len(self._in_flight) > num_ahead:
            self._land(core)
        core.metrics.step_s.observe(self._clock() - self._step_started_s)
        self._step_started_s = None
        if deltas := core.scheduler.take_deltas():
            self._deliver(deltas)

    def _launch(self, core: EngineCore, plan: SchedulerOutput) -> None:
        try:
            handle = core.runner.launch(plan)
        except Exception as error:
            handle = _FailedLaunch(error)
        self._in_flight.append((plan, handle))

    def _land(self, core: EngineCore) -> None:
        plan, handle = self._in_flight.popleft()
        try:
            result = handle.result()
        except Exception as error:
            logger.exception("step failed step=%d tokens=%d", plan.step_id, plan.num_tokens)
            failure = StepFailed(f"the step failed: {type(error).__name__}: {error}")
            core.scheduler.fail(plan, failure)
        else:
            core.scheduler.commit(plan, result)
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
    return EngineStats(
        num_waiting=len(scheduler.waiting),
        num_running=len(scheduler.running),
        free_pages=cache.num_free_pages,
        total_pages=cache.num_pages,
        free_state_slots=cache.num_free_state_slots,
        total_state_slots=cache.num_state_slots,
        steps=metrics.steps,
        prompt_tokens=metrics.prompt_tokens,
        generation_tokens=metrics.generation_tokens,
        requests_finished=metrics.requests_finished,
        requests_failed=metrics.requests_failed,
        requests_aborted=metrics.requests_aborted,
        queue_s=metrics.queue_s.snapshot(),
        time_to_first_token_s=metrics.time_to_first_token_s.snapshot(),
        inter_token_s=metrics.inter_token_s.snapshot(),
        step_s=metrics.step_s.snapshot(),
    )
