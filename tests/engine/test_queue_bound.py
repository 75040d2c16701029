"""How much is taken, and when the refused may come back."""

from __future__ import annotations

import pytest

from trnrt_engine.errors import EngineOverloaded
from trnrt_engine.queue_bound import MAX_RETRY_S, QueueBound, Turnover


def refusal(bound: QueueBound, **fields) -> EngineOverloaded | None:
    asked = {"num_requests": 0, "num_places": 4, "num_tokens": 0, "tokens_per_s": None}
    try:
        bound.check(**{**asked, "now_s": 0.0, **fields})
    except EngineOverloaded as error:
        return error
    return None


def bound_of(*, max_waiting: int = 2, max_prefill_s: float = 60.0) -> QueueBound:
    return QueueBound(max_waiting=max_waiting, max_prefill_s=max_prefill_s, now_s=0.0)


def test_turnover_is_the_mean_time_between_ends() -> None:
    turnover = Turnover(0.0)
    assert turnover.next_place_in_s(30.0) == 30.0
    for at_s in (10.0, 20.0, 30.0):
        turnover.record_end(at_s)
    assert turnover.next_place_in_s(32.0) == 8.0


def test_requests_are_bounded_by_number() -> None:
    bound = bound_of()
    for at_s in (4.0, 8.0, 12.0):
        bound.record_end(at_s)
    assert refusal(bound, num_requests=5) is None
    error = refusal(bound, num_requests=6, now_s=16.0)
    assert "6 requests are waiting or running" in str(error)
    assert error.retry_after_s == 4.0
    bound.begin(100.0)
    assert refusal(bound, num_requests=6, now_s=107.0).retry_after_s == 7.0


def test_prompts_are_bounded_by_the_seconds_they_need() -> None:
    bound = bound_of(max_prefill_s=60.0)
    assert refusal(bound, num_tokens=6000, tokens_per_s=100.0) is None
    error = refusal(bound, num_tokens=9000, tokens_per_s=100.0)
    assert "need about 90 s" in str(error)
    assert "is 60 s: retry in about 30 s" in str(error)
    assert error.retry_after_s == 30.0


def test_who_comes_back_when_told_is_taken() -> None:
    bound, speed, now_s, waiting = bound_of(max_prefill_s=5.0), 250.0, 0.0, 4000.0
    error = refusal(bound, num_tokens=int(waiting), tokens_per_s=speed, now_s=now_s)
    waiting -= speed * error.retry_after_s
    now_s += error.retry_after_s
    assert refusal(bound, num_tokens=int(waiting), tokens_per_s=speed, now_s=now_s) is None


@pytest.mark.parametrize("num_tokens", [0, 10**9])
def test_speed_that_is_not_known_bounds_nothing(num_tokens: int) -> None:
    assert refusal(bound_of(), num_tokens=num_tokens) is None


def test_times_to_come_back_are_within_a_second_and_an_hour() -> None:
    bound = bound_of(max_waiting=0, max_prefill_s=1.0)
    assert refusal(bound, num_tokens=101, tokens_per_s=100.0).retry_after_s == 1.0
    assert refusal(bound, num_tokens=10**9, tokens_per_s=1.0).retry_after_s == MAX_RETRY_S
    assert refusal(bound, num_requests=4, now_s=1e9).retry_after_s == MAX_RETRY_S
