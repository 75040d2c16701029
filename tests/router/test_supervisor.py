from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

import psutil
import pytest

from trnrt_router import supervisor as supervisor_module
from trnrt_router.supervisor import EngineCommand, Supervisor, SupervisorGaveUp

WAITS = "import time; print('up', flush=True); time.sleep(600)"
FATAL = 78


def command(name: str, program: str) -> EngineCommand:
    return EngineCommand(
        name=name, argv=[sys.executable, "-c", program], environment=dict(os.environ)
    )


class Watched:
    """A supervisor and the lines its engines wrote."""

    def __init__(self, *commands: EngineCommand, any_ready: bool = False) -> None:
        self.lines: list[tuple[str, str]] = []
        self.supervisor = Supervisor(
            commands,
            any_ready=lambda: any_ready,
            is_fatal=lambda code: code == FATAL,
            show_line=lambda name, line: self.lines.append((name, line)),
        )


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def quick_back_off(monkeypatch):
    monkeypatch.setattr(supervisor_module, "BACKOFF_S", (0.01,))


def test_engines_run_and_their_output_is_shown_by_name():
    async def scenario():
        watched = Watched(command("a", WAITS), command("b", WAITS))
        running = asyncio.ensure_future(watched.supervisor.run())
        await until(lambda: len(watched.lines) == 2)
        pids = watched.supervisor.pids
        await watched.supervisor.stop(grace_s=10)
        await running
        return sorted(watched.lines), pids

    lines, pids = asyncio.run(scenario())
    assert lines == [("a", "up"), ("b", "up")]
    assert set(pids) == {"a", "b"}
    assert not any(psutil.pid_exists(pid) for pid in pids.values())


def test_killed_engine_is_started_again():
    async def scenario():
        watched = Watched(command("a", WAITS), any_ready=True)
        running = asyncio.ensure_future(watched.supervisor.run())
        await until(lambda: watched.lines)
        first = watched.supervisor.pids["a"]
        os.kill(first, signal.SIGKILL)
        await until(lambda: len(watched.lines) == 2)
        second = watched.supervisor.pids["a"]
        await watched.supervisor.stop(grace_s=10)
        await running
        return first, second

    first, second = asyncio.run(scenario())
    assert first != second


def test_engine_that_never_starts_ends_in_an_error_with_its_last_words():
    async def scenario():
        watched = Watched(command("a", "import sys; print('no such weights'); sys.exit(3)"))
        with pytest.raises(SupervisorGaveUp) as caught:
            await watched.supervisor.run()
        return watched.lines, str(caught.value)

    lines, message = asyncio.run(scenario())
    assert len(lines) == supervisor_module.MAX_FAILED_STARTS
    assert "engine a ended with code 3" in message
    assert "no such weights" in message


def test_fatal_exit_code_is_not_tried_again():
    async def scenario():
        watched = Watched(command("a", f"import sys; print('bad'); sys.exit({FATAL})"))
        with pytest.raises(SupervisorGaveUp):
            await watched.supervisor.run()
        return watched.lines

    assert asyncio.run(scenario()) == [("a", "bad")]


def test_failing_engine_is_tried_for_ever_while_another_serves():
    async def scenario():
        failing = command("a", f"import sys; print('bad'); sys.exit({FATAL})")
        watched = Watched(failing, any_ready=True)
        running = asyncio.ensure_future(watched.supervisor.run())
        await until(lambda: len(watched.lines) > 2 * supervisor_module.MAX_FAILED_STARTS)
        assert not running.done()
        await watched.supervisor.stop(grace_s=10)
        await running

    asyncio.run(scenario())


def test_engine_that_ignores_the_signal_is_killed_after_the_grace_period():
    program = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {WAITS}"

    async def scenario():
        watched = Watched(command("a", program))
        running = asyncio.ensure_future(watched.supervisor.run())
        await until(lambda: watched.lines)
        [pid] = watched.supervisor.pids.values()
        began = time.monotonic()
        await watched.supervisor.stop(grace_s=0.3)
        await running
        return pid, time.monotonic() - began

    pid, took_s = asyncio.run(scenario())
    assert took_s >= 0.3
    assert not psutil.pid_exists(pid)


def test_processes_an_engine_has_started_end_with_it():
    program = (
        "import subprocess, sys, time;"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        "print(child.pid, flush=True); time.sleep(600)"
    )

    async def scenario():
        watched = Watched(command("a", program), any_ready=True)
        running = asyncio.ensure_future(watched.supervisor.run())
        await until(lambda: watched.lines)
        grandchild = int(watched.lines[0][1])
        os.kill(watched.supervisor.pids["a"], signal.SIGKILL)
        await until(lambda: not is_running(grandchild))
        await watched.supervisor.stop(grace_s=10)
        await running

    asyncio.run(scenario())


def test_cancelled_supervisor_leaves_no_process():
    async def scenario():
        watched = Watched(command("a", WAITS))
        running = asyncio.ensure_future(watched.supervisor.run())
        await until(lambda: watched.lines)
        [pid] = watched.supervisor.pids.values()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await until(lambda: not is_running(pid))

    asyncio.run(scenario())


def is_running(pid: int) -> bool:
    """Whether a process exists and is more than an entry waiting to be collected."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
