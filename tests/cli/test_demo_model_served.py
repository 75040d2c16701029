"""The acceptance of the demo model: its prompts, greedy, through the served API."""

import pytest

from support.demo_training import import_path

import_path()
from demo_training.evaluate import evaluate, http_client, num_right, report  # noqa: E402

from trnrt_cli.service import Service  # noqa: E402

FLOOR = 36
LONG_RECALL_FLOOR = 5


@pytest.fixture(scope="module")
def complete():
    with Service("--model", "demo", "--engines", "2") as service:
        yield http_client(f"http://127.0.0.1:{service.port}/v1", "demo")


@pytest.mark.slow(minutes=3)
@pytest.mark.timeout(600)
def test_most_of_the_forty_prompts_are_answered_right(complete):
    outcomes = evaluate(complete)
    assert len(outcomes) == 40
    assert num_right(outcomes) >= FLOOR, report(outcomes)


@pytest.mark.slow(minutes=2)
@pytest.mark.timeout(600)
def test_facts_are_recalled_over_a_thousand_tokens(complete):
    outcomes = evaluate(complete, ("long_recall",))
    assert num_right(outcomes) >= LONG_RECALL_FLOOR, report(outcomes)
