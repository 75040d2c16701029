"""`trnrt demo` as a person runs it: real processes, the shipped model, nothing left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from trnrt_cli.demo_questions import CONVERSATIONS

DEMO = [sys.executable, "-m", "trnrt_cli", "demo"]
MAX_CPU_S = 45
LIMIT_S = 240
STOP_LIMIT_S = 60


@pytest.fixture
def environ() -> Iterator[dict[str, str]]:
    """An environment that marks every process of a test; none of them may outlive it."""
    mark = {"DEMO_TEST_MARK": uuid.uuid4().hex}
    yield os.environ | mark
    left = [process for process in psutil.process_iter() if carries(process, mark)]
    _, alive = psutil.wait_procs(left, timeout=5)
    assert alive == []


def carries(process: psutil.Process, mark: dict[str, str]) -> bool:
    try:
        return mark.items() <= process.environ().items()
    except psutil.Error:
        return False


def run_demo(environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*DEMO, *arguments],
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_demo_answers_everything_within_its_cpu_budget(environ: dict[str, str]) -> None:
    result = run_demo(environ)
    assert result.returncode == 0, result.stdout + result.stderr
    num_turns = sum(len(conversation.turns) for conversation in CONVERSATIONS)
    summary = re.search(r"(\d+) of (\d+) answers as expected; .* ([\d.]+) CPU", result.stdout)
    assert summary is not None
    assert summary[1] == summary[2] == str(num_turns)
    assert float(summary[3]) <= MAX_CPU_S
    counts = re.findall(r"\[(\d+) prompt tokens, (\d+) cached, (\d+) output", result.stdout)
    assert len(counts) == num_turns
    assert all(int(prompt) > 0 and int(output) > 0 for prompt, _, output in counts)


def test_demo_of_a_folder_that_is_no_model_says_why(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    result = run_demo(environ, "--model", str(tmp_path))
    assert result.returncode == 1
    assert str(tmp_path) in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def test_demo_that_is_stopped_early_takes_its_processes_along(
    environ: dict[str, str],
) -> None:
    with subprocess.Popen(DEMO, env=environ, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            if "engine started" in line:
                break
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=STOP_LIMIT_S)
    assert process.returncode == 128 + signal.SIGTERM
