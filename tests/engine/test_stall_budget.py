"""Chunk or decode: the budget holds wherever it can, and neither side starves."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable

import pytest

from support.paged_counter import QuickModel, expected_outputs
from support.virtual_engine import VirtualEngine
from trnrt_engine.errors import IntegrityError
from trnrt_engine.metrics import EngineMetrics
from trnrt_engine.plan import SchedulerOutput
from trnrt_engine.stall_budget import MAX_CHUNKS_BETWEEN_DECODES, StallBudget
from trnrt_engine.step_times import StepTimes

BUCKETS = (64, 128, 256, 512, 1024, 2048)


def linear_cost(
    *, chunk_s: float = 0.001, token_s: float = 0.0001, decode_s: float = 0.01
) -> Callable[[SchedulerOutput], float]:
    """Seconds of a step on a machine whose time depends on rows alone, padding included."""

    def cost(plan: SchedulerOutput) -> float:
        if plan.prefill is None:
            return decode_s
        rows = next(b for b in BUCKETS if b >= len(plan.prefill.token_ids))
        return chunk_s + token_s * rows

    return cost


def engine_of(**fields) -> VirtualEngine:
    return VirtualEngine(
        **{
            "num_pages": 4096,
            "page_size": 64,
            "max_model_len": 65_536,
            "prefill_buckets": BUCKETS,
            "context_buckets": (8192, 65_536),
            "model": QuickModel(),
            "checks_every": 50,
            "stall_s": 0.1,
            **fields,
        }
    )


def beside_a_prompt(engine: VirtualEngine, *, length: int = 20_000) -> list[float]:
    """Run a stream, a long prompt beside it, and return the gaps between the stream's tokens."""
    times_s: list[float] = []
    engine.submit("stream", [1] * 10, max_tokens=20_000)
    for _ in range(3):
        engine.step()
    engine.submit("long", [2] * length, max_tokens=1)
    count = len(engine.tokens("stream"))
    while not engine.deltas.get("long"):
        engine.step()
        if len(engine.tokens("stream")) > count:
            count = len(engine.tokens("stream"))
            times_s.append(engine.now_s)
    return [after - before for before, after in itertools.pairwise(times_s)]


def chunks(engine: VirtualEngine, name: str) -> list[int]:
    plans = [plan.prefill for plan in engine.plans if plan.prefill is not None]
    return [len(chunk.token_ids) for chunk in plans if chunk.request.request_id == name]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("stall_s", [0.02, 0.05, 0.1, 0.3, 1.0])
def test_gap_of_a_stream_stays_within_the_budget(stall_s: float, depth: int) -> None:
    engine = engine_of(stall_s=stall_s, depth=depth, cost=linear_cost())
    assert max(beside_a_prompt(engine)) <= stall_s + 1e-9
    assert engine.metrics.stall_overruns == 0


def test_chunk_is_the_largest_bucket_that_fits() -> None:
    engine = engine_of(stall_s=0.1, cost=linear_cost())
    beside_a_prompt(engine)
    sizes = chunks(engine, "long")
    # 10 ms are the decode's; 52 ms fit, then 27 ms, then 7 ms.
    assert sizes[:6] == [512, 256, 64, 512, 256, 64]
    alone = engine_of(stall_s=0.1, cost=linear_cost())
    alone.submit("long", [2] * 20_000, max_tokens=1)
    alone.run_until_idle()
    assert set(chunks(alone, "long")[:-1]) == {2048}


def test_quick_chunks_are_not_more_than_a_few_between_two_decodes() -> None:
    engine = engine_of(stall_s=10.0, cost=linear_cost())
    beside_a_prompt(engine)
    kinds = "".join("p" if plan.prefill else "d" for plan in engine.plans)
    assert "p" * MAX_CHUNKS_BETWEEN_DECODES in kinds
    assert "p" * (MAX_CHUNKS_BETWEEN_DECODES + 1) not in kinds


@pytest.mark.parametrize("depth", [0, 1])
def test_smallest_chunk_alternates_with_a_decode_where_nothing_fits(
    depth: int, caplog: pytest.LogCaptureFixture
) -> None:
    engine = engine_of(stall_s=0.01, depth=depth, cost=linear_cost(decode_s=0.02))
    with caplog.at_level(logging.WARNING):
        gaps = beside_a_prompt(engine, length=2000)
    assert max(gaps) == pytest.approx(0.02 + 0.0074)
    kinds = "".join("p" if plan.prefill else "d" for plan in engine.plans[4:])
    assert "pp" not in kinds
    assert "ddd" not in kinds
    assert set(chunks(engine, "long")[:-1]) == {64}
    assert engine.metrics.stall_overruns >= 28
    assert [r.message for r in caplog.records].count(caplog.records[0].message) == 1
    assert "smallest_chunk_and_decode_ms=27" in caplog.text


def test_first_chunk_in_a_new_context_is_a_smallest_one() -> None:
    contexts = (2048, 8192, 16_384, 65_536)

    def cost(plan: SchedulerOutput) -> float:
        if plan.prefill is None:
            return 0.005
        end = plan.prefill.start + len(plan.prefill.token_ids)
        rows = next(b for b in BUCKETS if b >= len(plan.prefill.token_ids))
        return 0.001 + rows * 3e-9 * next(c for c in contexts if c >= end)

    engine = engine_of(stall_s=0.1, cost=cost, context_buckets=contexts)
    gaps = beside_a_prompt(engine, length=60_000)
    assert max(gaps) <= 0.1
    long = [p.prefill for p in engine.plans if p.prefill]
    first = {}
    for chunk in long[1:]:
        end = chunk.start + len(chunk.token_ids)
        first.setdefault(next(c for c in contexts if c >= end), len(chunk.token_ids))
    assert [first[context] for context in contexts[1:]] == [64, 64, 64]
    assert max(len(chunk.token_ids) for chunk in long if chunk.start < 2048) == 2048


@pytest.mark.parametrize("seed", range(4))
def test_noise_goes_beyond_the_budget_seldom_and_little(seed: int) -> None:
    chance = random.Random(seed)
    steady = linear_cost()
    engine = engine_of(stall_s=0.1, cost=lambda plan: steady(plan) * chance.uniform(0.9, 1.1))
    gaps = beside_a_prompt(engine, length=60_000)
    assert max(gaps) <= 0.1 * 1.1
    assert sum(gap > 0.1 for gap in gaps) <= len(gaps) / 10


def test_slow_moment_is_over_for_the_chunks_too() -> None:
    moment = [1.0]
    steady = linear_cost()
    engine = engine_of(stall_s=0.1, cost=lambda plan: steady(plan) * moment[0])
    engine.submit("warm", [3] * 4000, max_tokens=1)
    engine.run_until_idle()
    moment[0] = 20.0
    engine.submit("slow", [3] * 4000, max_tokens=1)
    engine.run_until_idle()
    moment[0] = 1.0
    engine.submit("stream", [1] * 10, max_tokens=20_000)
    for _ in range(3):
        engine.step()
    engine.submit("long", [2] * 60_000, max_tokens=1)
    while not engine.deltas.get("long"):
        engine.step()
    assert 512 in chunks(engine, "long")


def test_steps_that_fail_teach_nothing_and_hold_up_nobody() -> None:
    engine = engine_of(cost=linear_cost(), model=None, page_size=64)
    engine.submit("stream", [1] * 10, max_tokens=30)
    for _ in range(3):
        engine.step()
    engine.submit("doomed", [2] * 3000, max_tokens=1)
    while not engine.plans[-1].prefill or engine.plans[-1].prefill.request.request_id != "doomed":
        engine.step()
    engine.step(fails=True)
    engine.run_until_idle()
    done = [name for name in ("stream", "doomed") if engine.end(name).error is None]
    assert len(done) == 1
    if done == ["stream"]:
        assert engine.tokens("stream") == expected_outputs([1] * 10, 30)


def test_step_that_lands_was_launched() -> None:
    budget = StallBudget(
        StepTimes(prefill_buckets=(64,), decode_buckets=(1,), context_buckets=(512,)),
        budget_s=1.0,
        metrics=EngineMetrics(),
    )
    with pytest.raises(IntegrityError, match="never launched"):
        budget.land_step(now_s=1.0, has_failed=False)


@pytest.mark.parametrize("budget_s", [0.0, -1.0, float("nan"), float("inf")])
def test_budget_is_a_positive_time(budget_s: float) -> None:
    times = StepTimes(prefill_buckets=(64,), decode_buckets=(1,), context_buckets=(512,))
    with pytest.raises(ValueError, match="budget_s is"):
        StallBudget(times, budget_s=budget_s, metrics=EngineMetrics())
