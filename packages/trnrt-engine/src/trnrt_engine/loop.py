"""The engine's thread: the only place that touches the scheduler and the tensors.

Others talk to it through a queue of commands and hear from it through `deliver`, once a step.
It answers no questions: health and statistics are read from outside while a step runs.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from trnrt_engine.api import RequestProgress, TokenDelta
from trnrt_engine.core import EngineCore, Stepper
from trnrt_engine.request import Request

logger = logging.getLogger(__name__)

PROGRESS_S = 1.0  # so often it is worked out where each request stands


@dataclass(frozen=True, slots=True)
class Abort:
    """Command: end the request of this id."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Flush:
    """Command: forget what is cached under a salt; None means under all."""

    salt: str | None


@dataclass(frozen=True, slots=True)
class ReleaseSession:
    """Command: let go of what a session pinned."""

    session_id: str


class Close:
    """Command: leave the loop after the step under way."""


Command = Request | Abort | Flush | ReleaseSession | Close


class EngineLoop:
    """Step as long as there is work, sleep when there is none.

    Args:
        build: makes the core; runs in the loop's thread.
        on_ready: called with the core once it is built.
        on_exit: called last, with the error that ended the loop or None after `Close`.
        deliver: called with the deltas of each step, never with none.
        clock: seconds, monotonic.

    The three callbacks run in the loop's thread.

    Attributes:
        progress: where requests stood before their first tokens, about a second ago; replaced as
            a whole, so that any thread may read it.
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
        self._stepper: Stepper | None = None
        self.progress: dict[str, RequestProgress] = {}
        self._progress_at_s = -math.inf
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
        return None if self._stepper is None else self._stepper.running_s()

    def _run(self) -> None:
        try:
            core = self._build()
        except Exception as error:
            self._on_exit(error)
            return
        stepper = self._stepper = Stepper(core, clock=self._clock)
        self._on_ready(core)
        try:
            while self._take_commands(core):
                if deltas := stepper.step():
                    self._deliver(deltas)
                self._note_progress(core)
        except Exception as error:
            logger.exception("engine loop ended by an error")
            self._on_exit(error)
            return
        finally:
            core.cache.close()
        self._on_exit(None)

    def _note_progress(self, core: EngineCore) -> None:
        now_s = self._clock()
        if now_s - self._progress_at_s >= PROGRESS_S:
            self._progress_at_s = now_s
            self.progress = core.scheduler.progress()

    def _take_commands(self, core: EngineCore) -> bool:
        """Execute what has been sent, waiting for it when idle; False after `Close`."""
        scheduler = core.scheduler
        is_idle = not scheduler.has_work and not core.cache.is_copying
        while is_idle or not self._commands.empty():
            match self._commands.get():
                case Close():
                    return False
                case Abort(request_id):
                    scheduler.abort(request_id)
                case Flush(salt):
                    core.cache.flush(salt)
                case ReleaseSession(session_id):
                    core.cache.release_session(session_id)
                case Request() as request:
                    scheduler.add(request)
            is_idle = False
        return True
