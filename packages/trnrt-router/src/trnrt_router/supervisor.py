"""Starts engine processes, restarts the dead with back-off, leaves none behind."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import FileIO

from trnrt_router.errors import TrnrtRouterError

logger = logging.getLogger(__name__)

BACKOFF_S = (0.5, 1.0, 2.0, 5.0, 15.0, 60.0)
STABLE_S = 60.0
MAX_FAILED_STARTS = 4
SHOWN_LINES = 12
READ_BYTES = 65_536


class SupervisorGaveUp(TrnrtRouterError):
    """No engine runs and starting one again would not help; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCommand:
    """How one engine process is started.

    Fields:
        environment: the child's whole environment.
    """

    name: str
    argv: Sequence[str]
    environment: Mapping[str, str]


@dataclass(slots=True)
class _Child:
    """A running process and the last lines it wrote."""

    command: EngineCommand
    process: asyncio.subprocess.Process | None = None
    failures: int = 0
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN_LINES))


class Supervisor:
    """Keeps a fixed set of engine processes running.

    Args:
        any_ready: whether some engine serves; while one does, the others are tried for ever.
        is_fatal: whether an exit code means that another try cannot help.
        show_line: gets what engines write, with the engine's name.
    """

    def __init__(
        self,
        commands: Sequence[EngineCommand],
        *,
        any_ready: Callable[[], bool],
        is_fatal: Callable[[int], bool],
        show_line: Callable[[str, str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._children = [_Child(command) for command in commands]
        self._any_ready = any_ready
        self._is_fatal = is_fatal
        self._show_line = show_line
        self._clock = clock
        self._stopping = asyncio.Event()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids of the engines that run, by name."""
        return {
            child.command.name: child.process.pid
            for child in self._children
            if child.process is not None and child.process.returncode is None
        }

    async def run(self) -> None:
        """Start all engines and keep them running until `stop`.

        Raises:
            SupervisorGaveUp: no engine serves and this one cannot be started.
        """
        keepers = [asyncio.ensure_future(self._keep_running(child)) for child in self._children]
        try:
            done, _ = await asyncio.wait(keepers, return_when=asyncio.FIRST_EXCEPTION)
            for keeper in done:
                keeper.result()
        finally:
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)

    async def stop(self, *, grace_s: float) -> None:
        """End every engine: asked first, killed after `grace_s`, with all they started."""
        self._stopping.set()
        await asyncio.gather(*(_end(child, grace_s) for child in self._children))

    async def _keep_running(self, child: _Child) -> None:
        name = child.command.name
        while not self._stopping.is_set():
            started = self._clock()
            code = await self._run_once(child)
            if self._stopping.is_set():
                return
            has_lasted = self._clock() - started >= STABLE_S
            child.failures = 1 if has_lasted else child.failures + 1
            reason = _exit_reason(code)
            gives_up = self._is_fatal(code) or child.failures >= MAX_FAILED_STARTS
            if gives_up and not self._any_ready():
                raise SupervisorGaveUp(
                    f"engine {name} {reason}, start {child.failures}; its last lines:\n"
                    + "\n".join(f"  {line}" for line in child.last_lines)
                )
            delay_s = BACKOFF_S[min(child.failures, len(BACKOFF_S)) - 1]
            logger.error("engine %s name=%s restart_in_s=%.1f", reason, name, delay_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._stopping.wait()

    async def _run_once(self, child: _Child) -> int:
        command = child.command
        child.last_lines.clear()
        # A pipe of our own: asyncio's `wait` would also wait for whoever still holds its pipe.
        read_fd, write_fd = os.pipe()
        with os.fdopen(read_fd, "rb", buffering=0) as output:
            try:
                child.process = process = await asyncio.create_subprocess_exec(
                    *command.argv,
                    env=dict(command.environment),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=write_fd,
                    stderr=write_fd,
                    start_new_session=True,  # a Ctrl-C is ours to pass on, after the drain
                )
            finally:
                os.close(write_fd)
            logger.info("engine started name=%s pid=%d", command.name, process.pid)
            reading = asyncio.ensure_future(self._show_output(child, output))
            try:
                return await process.wait()
            finally:
                _kill_group(process.pid)
                await process.wait()
                await reading

    async def _show_output(self, child: _Child, output: FileIO) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), output
        )
        rest = b""
        try:
            while data := await reader.read(READ_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                for raw in lines:
                    line = raw.decode(errors="replace").rstrip()
                    child.last_lines.append(line)
                    self._show_line(child.command.name, line)
        finally:
            transport.close()


async def _end(child: _Child, grace_s: float) -> None:
    process = child.process
    if process is None or process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(grace_s):
            await process.wait()
    except TimeoutError:
        logger.warning("engine killed name=%s grace_s=%.0f", child.command.name, grace_s)
    finally:
        _kill_group(process.pid)
    await process.wait()


def _kill_group(pid: int) -> None:
    """Kill what is left of a process and everything it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _exit_reason(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with code {code}"


def show_on_stderr(name: str, line: str) -> None:
    """Pass a line of an engine on to this process's standard error, marked with its name."""
    sys.stderr.write(f"[engine {name}] {line}\n")
    sys.stderr.flush()
