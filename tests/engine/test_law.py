"""The law of neutrality, the release gate: whatever happens, an answer is the request's own.

A short run is part of `make check`. The long one takes LAW_MINUTES minutes (default 3) and prints
what it did:

    LAW_MINUTES=30 .venv/bin/pytest -m slow -s tests/engine/test_law.py
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from support.law_box import Alone
from support.law_machine import LawMachine, Tally

if TYPE_CHECKING:
    from trnrt_kernels.models.glm5_next.model import Model

MINUTES = float(os.environ.get("LAW_MINUTES", "3"))
MAX_EXAMPLES = 1_000_000  # more than fit any time
MUST_HAVE = ("hits_device", "restarts", "evicted_pages", "preempted_swap")
RARE = ("hits_host", "hits_disk")  # in a few minutes they may not come


class TimeIsOver(BaseException):
    """No failure: it passes through hypothesis as an interrupt does."""


def law_settings(**fields) -> settings:
    return settings(database=None, deadline=None, suppress_health_check=list(HealthCheck), **fields)


@pytest.mark.timeout(600)
def test_an_answer_is_that_of_the_request_alone(law_models: dict[int, Model]) -> None:
    tally, alone = Tally(), Alone(law_models)
    run_state_machine_as_test(
        lambda: LawMachine(law_models, alone, tally),
        settings=law_settings(max_examples=12, stateful_step_count=12, derandomize=True),
    )
    print(tally.lines())
    assert tally.counts["hits_device"] > 0


@pytest.mark.slow(minutes=MINUTES)
@pytest.mark.timeout(60 * MINUTES + 1800)  # a failure is shrunk after that
def test_an_answer_is_that_of_the_request_alone_for_minutes(law_models: dict[int, Model]) -> None:
    tally, alone, until_s = Tally(), Alone(law_models), time.monotonic() + 60 * MINUTES

    class TimedMachine(LawMachine):
        def teardown(self) -> None:
            super().teardown()
            if time.monotonic() > until_s and not tally.has_failed:
                raise TimeIsOver

    with pytest.raises(TimeIsOver):
        run_state_machine_as_test(
            lambda: TimedMachine(law_models, alone, tally),
            settings=law_settings(
                max_examples=MAX_EXAMPLES,
                stateful_step_count=50,
                print_blob=True,
                # A search for new faults is asked for.
                derandomize="LAW_MINUTES" not in os.environ,
            ),
        )
    print(f"\nlaw minutes={MINUTES:g} {tally.lines()}")
    wanted = MUST_HAVE + (RARE if MINUTES >= 10 else ())
    assert [name for name in wanted if not tally.counts[name]] == []
