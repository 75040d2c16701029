"""The budget of slow proofs: what fits runs, what does not is named and never called passed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PROOFS = """
import pytest

@pytest.mark.slow(minutes=10)
def test_long(): raise AssertionError("must not start")

@pytest.mark.slow
def test_short(): pass

@pytest.mark.slow(minutes=0.5)
def test_shorter(): pass
"""


def run_pytest(folder: Path, budget_s: float) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (folder / "pytest.ini").write_text(f"[pytest]\nmarkers = slow\npythonpath = {TESTS}\n")
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", "slow"]
    return subprocess.run(
        [*command, f"--slow-budget={budget_s}", "."],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_proofs_that_do_not_fit_are_skipped_and_named(tmp_path: Path) -> None:
    (tmp_path / "test_proofs.py").write_text(PROOFS)
    result = run_pytest(tmp_path, 120)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 passed, 1 skipped" in result.stdout
    summary = result.stdout.split("slow proofs that did not run")[1]
    assert "test_proofs.py::test_long" in summary
    assert "test_short" not in summary
    assert result.stdout.index("::test_shorter") < result.stdout.index("::test_short ")


@pytest.mark.parametrize(("body", "code"), [("", 0), ("assert False", 1)], ids=["none", "failing"])
def test_exit_code_is_zero_unless_a_proof_fails(tmp_path: Path, body: str, code: int) -> None:
    proof = f"import pytest\n@pytest.mark.slow\ndef test_it():\n    {body}\n" if body else ""
    (tmp_path / "test_proofs.py").write_text(proof)
    assert run_pytest(tmp_path, 120).returncode == code
