"""Processes of a box that share a store and are killed in the middle of anything."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)  # many short processes; long on a busy machine


def crashes(kind: str, how: str, folder: Path, amount: float) -> int:
    run = subprocess.run(
        [sys.executable, "-m", "support.store_crashes", kind, how, str(folder), str(amount)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode == 0, run.stderr
    return int(run.stdout)


@pytest.mark.parametrize(("kind", "step"), [("host", 151), ("disk", 1501)])
def test_killed_at_a_line_harms_nobody(tmp_path: Path, kind: str, step: int) -> None:
    assert crashes(kind, "lines", tmp_path, step) > 8


@pytest.mark.parametrize("kind", ["host", "disk"])
def test_killed_at_a_moment_harms_nobody(tmp_path: Path, kind: str) -> None:
    assert crashes(kind, "moments", tmp_path, 4) > 0


@pytest.mark.slow(minutes=5)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kind", "step"), [("host", 1), ("disk", 37)])
def test_killed_at_every_line_harms_nobody(tmp_path: Path, kind: str, step: int) -> None:
    assert crashes(kind, "lines", tmp_path, step) > 500
