"""The scheduler under random traffic: every answer right, everything given back."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.paged_counter import expected_outputs
from support.traffic import MAX_WAITING, STALL_S, Traffic
from support.virtual_engine import VirtualEngine
from trnrt_engine.api import FinishReason


@dataclass(frozen=True)
class Submit:
    length: int
    max_tokens: int
    num_prior: int
    deadline_s: float | None
    tenant: str
    priority: int


@dataclass(frozen=True)
class Abort:
    which: int


@dataclass(frozen=True)
class Step:
    fails: bool
    poisoned: int | None


submits = st.builds(
    Submit,
    length=st.integers(1, 200),
    max_tokens=st.integers(1, 40),
    num_prior=st.integers(0, 6),
    deadline_s=st.none() | st.floats(0.01, 0.5),
    tenant=st.sampled_from(["", "a", "b"]),
    priority=st.integers(-2, 2),
)
steps = st.builds(
    Step,
    fails=st.sampled_from([False] * 19 + [True]),
    poisoned=st.sampled_from([None] * 19 + [0, 1]),
)
traffic = st.lists(
    st.one_of(submits, steps, steps, steps, st.builds(Abort, st.integers(0, 30))), max_size=120
)


@settings(max_examples=100, deadline=None)
@given(
    operations=traffic,
    depth=st.sampled_from([0, 1]),
    num_pages=st.integers(16, 40),
    max_num_seqs=st.integers(1, 6),
    prefill_ahead=st.integers(0, 3),
    token_budget=st.sampled_from([64, 100, 128, 256]),
)
def test_random_traffic_leaves_nothing_behind(
    operations: list[Submit | Abort | Step],
    depth: int,
    num_pages: int,
    max_num_seqs: int,
    prefill_ahead: int,
    token_budget: int,
) -> None:
    engine = VirtualEngine(
        num_pages=num_pages,
        max_num_seqs=max_num_seqs,
        prefill_ahead=prefill_ahead,
        token_budget=token_budget,
        depth=depth,
    )
    whole: dict[str, tuple[list[int], int]] = {}
    for operation in operations:
        match operation:
            case Submit(length, max_tokens, num_prior, deadline_s, tenant, priority):
                name = f"r{len(whole)}"
                prompt = [(len(whole) * 13 + index * 7) % 97 for index in range(length)]
                answer = expected_outputs(prompt, max_tokens)
                num_prior = min(num_prior, max_tokens)
                whole[name] = (answer, num_prior)
                engine.submit(
                    name,
                    prompt,
                    max_tokens=max_tokens,
                    prior_output_ids=answer[:num_prior],
                    deadline_s=deadline_s,
                    tenant=tenant,
                    priority=priority,
                )
            case Abort(which):
                engine.abort(f"r{which}")
            case Step(fails, poisoned):
                slots = [request.cache.state_slot for request in engine.scheduler.running]
                engine.model.bad_slots = (
                    set(slots[poisoned : poisoned + 1]) if poisoned is not None else set()
                )
                engine.step(fails=fails)
                engine.model.bad_slots = set()
    engine.run_until_idle()
    assert engine.is_empty()
    for name, (answer, num_prior) in whole.items():
        tokens, end = engine.tokens(name), engine.end(name)
        assert tokens == answer[num_prior : num_prior + len(tokens)]
        if end.finish_reason is FinishReason.LENGTH and end.num_output_tokens < len(answer):
            continue  # its deadline passed while it ran
        if end.finish_reason is FinishReason.LENGTH:
            assert num_prior + len(tokens) == len(answer)
        assert end.num_output_tokens == num_prior + len(tokens)


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 40)), min_size=1, max_size=12),
    depth=st.sampled_from([0, 1]),
    max_num_seqs=st.integers(1, 6),
)
def test_streams_wait_for_one_chunk_at_most(
    lengths: list[tuple[int, int]], depth: int, max_num_seqs: int
) -> None:
    engine = VirtualEngine(max_num_seqs=max_num_seqs, depth=depth)
    for index, (length, max_tokens) in enumerate(lengths):
        engine.submit(f"r{index}", [index + 1] * length, max_tokens=max_tokens)
    engine.run_until_idle()
    last_seen: dict[str, int] = {}
    for at, plan in enumerate(engine.plans):
        for row in plan.decode:
            name = row.request.request_id
            assert at - last_seen.get(name, at) <= 2
            last_seen[name] = at


MAX_LIFE_S = 120.0  # virtual seconds; a full queue is worked off in 45


def check_traffic(*, num_steps: int, seed: int, depth: int) -> None:
    """Run traffic and prove that all ended once, in time and in rhythm, and left nothing."""
    traffic = Traffic(seed=seed, depth=depth)
    tally, engine = traffic.run(num_steps), traffic.engine
    assert engine.streams == {}
    assert sum(tally.ends.values()) == tally.submitted
    assert engine.is_empty()
    # The load was one: a full queue, hits, failures, clients that left, prompts done ahead.
    assert tally.longest_queue >= MAX_WAITING
    assert min(tally.ends[reason] for reason in ("length", "error", "abort")) > num_steps / 500
    assert min(tally.hit_tokens, tally.parked, tally.gaps) > num_steps / 10
    assert engine.metrics.requests_failed == tally.ends[FinishReason.ERROR]
    assert tally.longest_life_s < MAX_LIFE_S
    assert tally.longest_gap_s <= STALL_S + 1e-9
    assert engine.metrics.stall_overruns == 0


@pytest.mark.parametrize("depth", [0, 1])
def test_100_000_steps_of_traffic_leave_nothing_behind_and_nobody_waiting(depth: int) -> None:
    check_traffic(num_steps=50_000, seed=depth, depth=depth)


@pytest.mark.slow(minutes=6)
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("depth", [0, 1])
def test_a_million_steps_of_traffic_leave_nothing_behind_and_nobody_waiting(depth: int) -> None:
    check_traffic(num_steps=500_000, seed=2 + depth, depth=depth)
