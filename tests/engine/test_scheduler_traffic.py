"""The scheduler under random traffic: every answer right, everything given back."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.paged_counter import QuickModel, expected_outputs
from support.virtual_engine import VirtualEngine
from trnrt_engine.api import FinishReason


@dataclass(frozen=True)
class Submit:
    length: int
    max_tokens: int
    num_prior: int
    deadline_s: float | None


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
    token_budget=st.sampled_from([64, 100, 128, 256]),
)
def test_random_traffic_leaves_nothing_behind(
    operations: list[Submit | Abort | Step],
    depth: int,
    num_pages: int,
    max_num_seqs: int,
    token_budget: int,
) -> None:
    engine = VirtualEngine(
        num_pages=num_pages, max_num_seqs=max_num_seqs, token_budget=token_budget, depth=depth
    )
    whole: dict[str, tuple[list[int], int]] = {}
    for operation in operations:
        match operation:
            case Submit(length, max_tokens, num_prior, deadline_s):
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


@pytest.mark.parametrize("depth", [0, 1])
def test_thousands_of_steps_of_load_leave_nothing_behind(depth: int) -> None:
    chance = random.Random(depth)
    engine = VirtualEngine(num_pages=48, max_num_seqs=6, depth=depth, model=QuickModel())
    submitted, longest_queue = 0, 0
    while len(engine.plans) < 3_000:
        if chance.random() < 0.12 and len(engine.scheduler.waiting) < 40:
            engine.submit(
                f"r{submitted}",
                [submitted % 97] * chance.randint(1, 120),
                max_tokens=chance.randint(1, 60),
                deadline_s=chance.choice([None, None, 1.0]),
            )
            submitted += 1
        if chance.random() < 0.01:
            engine.abort(f"r{chance.randrange(submitted + 1)}")
        engine.step(fails=chance.random() < 0.002)
        longest_queue = max(longest_queue, len(engine.scheduler.waiting))
    engine.run_until_idle()
    assert engine.is_empty()
    assert longest_queue > 6  # the load was one
    metrics = engine.metrics
    ended = metrics.requests_finished + metrics.requests_failed + metrics.requests_aborted
    assert ended == submitted > 150
    assert all(
        sum(delta.finish_reason is not None for delta in deltas) == 1
        for deltas in engine.deltas.values()
    )
