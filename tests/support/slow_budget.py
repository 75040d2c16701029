"""Run the `slow` proofs within a time budget: cheap ones first, the ones left over named."""

from __future__ import annotations

import time

import pytest

DEFAULT_MINUTES = 1.0


def expected_s(item: pytest.Item) -> float:
    """Say how long a slow proof is declared to take: `@pytest.mark.slow(minutes=5)`."""
    marker = item.get_closest_marker("slow")
    minutes = marker.kwargs.get("minutes", DEFAULT_MINUTES) if marker else DEFAULT_MINUTES
    return 60.0 * float(minutes)


class SlowBudget:
    """Starts a proof only when its declared time still fits; names the others at the end."""

    def __init__(self, budget_s: float) -> None:
        self.budget_s = budget_s
        self.deadline = time.monotonic() + budget_s
        self.not_run: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=expected_s)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if time.monotonic() + expected_s(item) > self.deadline:
            self.not_run.append(item.nodeid)
            pytest.skip(f"does not fit what is left of the budget of {self.budget_s:.0f} s")

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("slow proofs that did not run")
        for nodeid in self.not_run or ["none: all of them ran"]:
            terminalreporter.write_line(nodeid)
