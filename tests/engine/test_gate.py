"""The release gate passes, and every failure others reported is caught by a check of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.faults import FAULTS, Fault
from support.gate import CHECKS, Bench
from support.law_box import Alone

if TYPE_CHECKING:
    from trnrt_kernels.models.glm5_next.model import Model

pytestmark = pytest.mark.timeout(600)

# The others follow with ranks (F5) and with speculation (F3, F7, F14).
REPORTED = {f"F{number}" for number in (1, 2, 4, 6, 8, 9, 10, 11, 12, 13, 15, 16, 17)}


@pytest.fixture(scope="module")
def bench(law_models: dict[int, Model]) -> Bench:
    """Its answers of requests alone are those of the engine without a fault."""
    bench = Bench(law_models, Alone(law_models))
    CHECKS["law"][0](bench)
    return bench


@pytest.mark.parametrize("name", ["hit floor", "restore assertion", "self-test"])
def test_the_engine_passes(bench: Bench, name: str) -> None:
    """`bench` itself is the law, with integrity checked at every step."""
    check, _ = CHECKS[name]
    check(bench)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_reported_failure_is_caught(
    bench: Bench, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    check, error = CHECKS[fault.caught_by]
    fault.inject(monkeypatch)
    with pytest.raises(error):
        check(bench)


def test_every_reported_failure_is_injected() -> None:
    assert {fault.number for fault in FAULTS} == REPORTED
