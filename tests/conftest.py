"""Order of the layers (unit and contract, e2e, packaging last) and the budget of slow proofs."""

from __future__ import annotations

from pathlib import Path

import hypothesis
import pytest

from support.slow_budget import SlowBudget

TESTS = Path(__file__).parent
LATE_LAYERS = ("e2e", "packaging")

# How long an example takes on a loaded machine says nothing about the code.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow-budget",
        type=float,
        metavar="SECONDS",
        help="start slow proofs only while they fit this budget; name the ones that did not run",
    )


def pytest_configure(config: pytest.Config) -> None:
    if (budget_s := config.getoption("--slow-budget")) is not None:
        config.pluginmanager.register(SlowBudget(budget_s))


def layer(item: pytest.Item) -> int:
    """Rank a test by its folder: 0 for everything quick, then `LATE_LAYERS` in order."""
    top = item.path.relative_to(TESTS).parts[0]
    return LATE_LAYERS.index(top) + 1 if top in LATE_LAYERS else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=layer)
