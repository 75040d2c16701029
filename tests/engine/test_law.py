"""The law of neutrality, the release gate: whatever happens, an answer is the request's own.

A short run is part of `make check`. The long one takes LAW_MINUTES minutes (default 3) and prints
what it did:

    LAW_MINUTES=30 .venv/bin/python -m pytest -m slow -s tests/engine/test_law.py
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


def law_settings(**fields) -> settings:
    return settings(database=None, deadline=None, suppress_health_check=list(HealthCheck), **fields)


def test_an_answer_is_that_of_the_request_alone(law_models: dict[int, Model]) -> None:
    tally, alone = Tally(), Alone(law_models)
    run_state_machine_as_test(
        lambda: LawMachine(law_models, alone, tally),
        settings=law_settings(max_examples=16, stateful_step_count=30, derandomize=True),
    )
    print(tally.lines())
    assert tally.counts["hits_device"] > 0


@pytest.mark.slow(minutes=MINUTES)
@pytest.mark.timeout(120 * MINUTES + 900)
def test_an_answer_is_that_of_the_request_alone_for_minutes(law_models: dict[int, Model]) -> None:
    tally, alone, until_s = Tally(), Alone(law_models), time.monotonic() + 60 * MINUTES
    while time.monotonic() < until_s:
        run_state_machine_as_test(
            lambda: LawMachine(law_models, alone, tally),
            settings=law_settings(max_examples=20, stateful_step_count=50, print_blob=True),
        )
    print(f"\nlaw minutes={MINUTES:g} {tally.lines()}")
    for must_have in ("hits_device", "hits_host", "hits_disk", "restarts", "evicted_bundles"):
        assert tally.counts[must_have] > 0, must_have
