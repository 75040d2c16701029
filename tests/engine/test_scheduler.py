"""The scheduler alone, in virtual time, on a model of plain ints."""

from __future__ import annotations

import pytest

from support.paged_counter import expected_outputs
from support.virtual_engine import VirtualEngine
from trnrt_engine.api import EngineRequest, FinishReason
from trnrt_engine.cache.sequence import Admission
from trnrt_engine.errors import IntegrityError
from trnrt_engine.intake import make_request
from trnrt_engine.plan import SchedulerOutput, StepResult

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [(seed * 31 + index * 7) % 97 for index in range(length)]


def kinds(engine: VirtualEngine) -> str:
    return "".join("p" if plan.prefill is not None else "d" for plan in engine.plans)


def test_request_yields_the_tokens_of_its_model() -> None:
    engine = VirtualEngine()
    engine.submit("a", PROMPT, max_tokens=5)
    engine.run_until_idle()
    assert engine.tokens("a") == expected_outputs(PROMPT, 5)
    end = engine.end("a")
    assert end.finish_reason is FinishReason.LENGTH
    assert (end.num_prompt_tokens, end.num_output_tokens, end.stop_token_id) == (8, 5, None)
    assert engine.is_empty()


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("length", [1, 63, 64, 65, 127, 128, 129, 200])
def test_chunks_are_cut_on_the_grid_and_at_the_end(length: int, depth: int) -> None:
    engine = VirtualEngine(depth=depth, token_budget=150)
    engine.submit("a", prompt_of(length), max_tokens=3)
    engine.run_until_idle()
    chunks = [plan.prefill for plan in engine.plans if plan.prefill is not None]
    assert [chunk.start for chunk in chunks] == list(range(0, length, 128))
    assert sum(len(chunk.token_ids) for chunk in chunks) == length
    assert [chunk.samples for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert [chunk.is_first for chunk in chunks] == [True] + [False] * (len(chunks) - 1)
    assert engine.tokens("a") == expected_outputs(prompt_of(length), 3)


def test_running_decodes_get_a_step_after_every_chunk() -> None:
    engine = VirtualEngine()
    engine.submit("stream", PROMPT, max_tokens=40)
    for _ in range(3):
        engine.step()
    engine.submit("long", prompt_of(240), max_tokens=2)
    engine.run_until_idle()
    assert "pp" not in kinds(engine)
    assert kinds(engine).startswith("pddpdpdpdpd")


def test_waiting_prompts_are_served_in_order_of_arrival() -> None:
    engine = VirtualEngine(max_num_seqs=2)
    for index in range(6):
        engine.submit(f"r{index}", prompt_of(100, index), max_tokens=4)
    engine.run_until_idle()
    first_chunks = [
        p.prefill.request.request_id for p in engine.plans if p.prefill and p.prefill.is_first
    ]
    assert first_chunks == [f"r{index}" for index in range(6)]


def test_nobody_overtakes_the_head_of_the_queue() -> None:
    engine = VirtualEngine(num_pages=8, page_size=16)
    engine.submit("holder", PROMPT, max_tokens=60)  # five pages
    engine.step()
    engine.submit("big", prompt_of(100), max_tokens=10)  # seven pages
    engine.submit("small", PROMPT, max_tokens=2)
    for _ in range(10):
        engine.step()
    assert engine.tokens("small") == []
    engine.run_until_idle()
    assert engine.tokens("big") == expected_outputs(prompt_of(100), 10)
    assert engine.tokens("small") == expected_outputs(PROMPT, 2)


def test_batch_is_bounded_and_full() -> None:
    engine = VirtualEngine(max_num_seqs=3)
    for index in range(7):
        engine.submit(f"r{index}", prompt_of(5, index), max_tokens=20)
    engine.run_until_idle()
    widths = {len(plan.decode) for plan in engine.plans}
    assert max(widths) == 3
    for index in range(7):
        assert engine.tokens(f"r{index}") == expected_outputs(prompt_of(5, index), 20)


def test_pages_are_taken_when_reached_and_reserved_before() -> None:
    engine = VirtualEngine(num_pages=8, page_size=16)
    engine.submit("a", prompt_of(10), max_tokens=40)  # 49 cached positions: four pages
    engine.step()
    assert engine.cache.num_free_pages == 7
    engine.submit("b", prompt_of(70), max_tokens=3)  # 72 positions: five pages
    engine.step()
    assert len(engine.scheduler.running) == 1
    engine.run_until_idle()
    assert engine.is_empty()


def test_window_clamps_generation() -> None:
    engine = VirtualEngine(max_model_len=64)
    engine.submit("a", prompt_of(63), max_tokens=50)
    engine.submit("b", prompt_of(60))
    engine.run_until_idle()
    assert len(engine.tokens("a")) == 1
    assert len(engine.tokens("b")) == 4
    assert engine.end("a").finish_reason is engine.end("b").finish_reason is FinishReason.LENGTH


def test_stop_id_ends_a_request_and_is_delivered() -> None:
    free_run = expected_outputs(PROMPT, 30)
    stop_id = free_run[6]
    engine = VirtualEngine()
    engine.submit("a", PROMPT, max_tokens=30, stop_token_ids=(stop_id,))
    engine.run_until_idle()
    at = free_run.index(stop_id)
    assert engine.tokens("a") == free_run[: at + 1]
    assert engine.end("a").finish_reason is FinishReason.STOP
    assert engine.end("a").stop_token_id == stop_id


def test_ignore_eos_runs_past_the_models_own_end() -> None:
    free_run = expected_outputs(PROMPT, 20)
    engine = VirtualEngine(eos_token_ids=(free_run[3],))
    engine.submit("eos", PROMPT, max_tokens=20)
    engine.submit("ignoring", PROMPT, max_tokens=20, ignore_eos=True)
    engine.run_until_idle()
    assert len(engine.tokens("eos")) == free_run.index(free_run[3]) + 1
    assert engine.tokens("ignoring") == free_run


@pytest.mark.parametrize("min_tokens", [0, 1, 7])
def test_stop_ids_count_from_the_token_after_min_tokens(min_tokens: int) -> None:
    free_run = expected_outputs(PROMPT, 20)
    engine = VirtualEngine()
    stop_ids = tuple(set(free_run))
    engine.submit("a", PROMPT, max_tokens=20, min_tokens=min_tokens, stop_token_ids=stop_ids)
    engine.run_until_idle()
    assert engine.tokens("a") == free_run[: min_tokens + 1]
    assert engine.end("a").finish_reason is FinishReason.STOP


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("num_prior", [1, 2, 9])
def test_prior_output_is_recomputed_and_not_emitted_again(num_prior: int, depth: int) -> None:
    whole = expected_outputs(PROMPT, 12)
    engine = VirtualEngine(depth=depth)
    engine.submit("a", PROMPT, max_tokens=12, prior_output_ids=whole[:num_prior])
    engine.run_until_idle()
    assert engine.tokens("a") == whole[num_prior:]
    assert engine.end("a").num_output_tokens == 12
    forced = [row.is_forced for plan in engine.plans for row in plan.decode]
    assert forced == [True] * (num_prior - 1) + [False] * (12 - num_prior)
    indices = [row.output_index for plan in engine.plans for row in plan.decode]
    assert indices == list(range(1, 12))


def test_prior_output_that_already_ended_finishes_at_once() -> None:
    engine = VirtualEngine()
    engine.submit("full", PROMPT, max_tokens=2, prior_output_ids=[5, 6])
    engine.submit("stopped", PROMPT, max_tokens=9, prior_output_ids=[5, 6], stop_token_ids=(6,))
    assert engine.end("full").finish_reason is FinishReason.LENGTH
    assert engine.end("stopped").finish_reason is FinishReason.STOP
    assert engine.end("stopped").stop_token_id == 6
    assert engine.tokens("full") == engine.tokens("stopped") == []
    assert engine.scheduler.schedule() is None


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("steps_before", range(8))
def test_abort_frees_everything_within_two_steps(steps_before: int, depth: int) -> None:
    engine = VirtualEngine(depth=depth)
    engine.submit("a", prompt_of(150), max_tokens=30)
    engine.submit("other", PROMPT, max_tokens=30)
    for _ in range(steps_before):
        engine.step()
    engine.abort("a")
    assert engine.end("a").finish_reason is FinishReason.ABORT
    engine.step()
    engine.step()
    assert len(engine.scheduler.running) == 1
    assert engine.cache.num_free_state_slots == engine.cache.num_state_slots - 1
    engine.abort("other")
    engine.step()
    assert engine.is_empty()
    assert engine.metrics.requests_aborted == 2


def test_abort_of_an_unknown_request_is_nothing() -> None:
    engine = VirtualEngine()
    engine.abort("nobody")
    assert engine.deltas == {}


def test_deadline_before_the_start_is_an_error() -> None:
    engine = VirtualEngine(max_num_seqs=1, step_s=1.0)
    engine.submit("holder", PROMPT, max_tokens=10)
    engine.submit("late", PROMPT, max_tokens=10, deadline_s=3.0)
    engine.run_until_idle()
    end = engine.end("late")
    assert end.finish_reason is FinishReason.ERROR
    assert end.error is not None
    assert end.error.kind == "DeadlineExceeded"
    assert "3 s" in end.error.message
    assert len(engine.tokens("holder")) == 10


def first_chunks(engine: VirtualEngine) -> list[str]:
    return [p.prefill.request.request_id for p in engine.plans if p.prefill and p.prefill.is_first]


def test_lower_priority_numbers_are_admitted_first() -> None:
    engine = VirtualEngine(max_num_seqs=1)
    engine.submit("holder", PROMPT, max_tokens=5)
    engine.step()
    for name, priority in [("idle", 9), ("normal", 0), ("urgent", -1)]:
        engine.submit(name, PROMPT, max_tokens=2, priority=priority)
    engine.run_until_idle()
    assert first_chunks(engine) == ["holder", "urgent", "normal", "idle"]


def test_chunks_of_a_better_priority_go_first_beside_a_long_prompt() -> None:
    engine = VirtualEngine(max_model_len=2048, num_pages=256)
    engine.submit("long", prompt_of(1000), max_tokens=2)
    engine.step()
    engine.submit("urgent", prompt_of(900), max_tokens=2, priority=-1)
    engine.run_until_idle()
    ends = [p.prefill.request.request_id for p in engine.plans if p.prefill and p.prefill.samples]
    assert ends == ["urgent", "long"]


def test_tenants_are_served_alike_though_one_came_first_with_more() -> None:
    engine = VirtualEngine(max_num_seqs=2)
    for index in range(12):
        engine.submit(f"a{index}", prompt_of(60), max_tokens=3, tenant="a")
    for index in range(4):
        engine.submit(f"b{index}", prompt_of(60), max_tokens=3, tenant="b")
    engine.run_until_idle()
    order = first_chunks(engine)
    assert sorted(order[:8]) == sorted([*(f"a{i}" for i in range(4)), *(f"b{i}" for i in range(4))])
    assert len(order) == 16


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_first_tokens_come_ahead_of_a_place_in_the_batch(ahead: int, depth: int) -> None:
    engine = VirtualEngine(max_num_seqs=2, prefill_ahead=ahead, depth=depth)
    for index in range(2 + ahead + 1):
        engine.submit(f"r{index}", prompt_of(30, index), max_tokens=20)
    while len(engine.tokens("r0")) < 15:
        engine.step()
    assert [len(engine.tokens(f"r{2 + index}")) for index in range(ahead)] == [1] * ahead
    assert engine.tokens(f"r{2 + ahead}") == []
    engine.run_until_idle()
    assert max(len(plan.decode) for plan in engine.plans) == 2
    seated = list(dict.fromkeys(row.request.request_id for p in engine.plans for row in p.decode))
    assert seated == [f"r{index}" for index in range(2 + ahead + 1)]
    for index in range(2 + ahead + 1):
        assert engine.tokens(f"r{index}") == expected_outputs(prompt_of(30, index), 20)
    assert engine.is_empty()


@pytest.mark.parametrize("when", [1, 4, 8, 14])
def test_abort_of_one_computed_ahead_gives_its_place_to_another(when: int) -> None:
    engine = VirtualEngine(max_num_seqs=1, prefill_ahead=2)
    for index in range(5):
        engine.submit(f"r{index}", prompt_of(100, index), max_tokens=6)
    for _ in range(when):
        engine.step()
    engine.abort("r1")
    engine.run_until_idle()
    assert engine.end("r1").finish_reason is FinishReason.ABORT
    for index in (0, 2, 3, 4):
        assert engine.tokens(f"r{index}") == expected_outputs(prompt_of(100, index), 6)
    assert engine.is_empty()


def test_progress_says_where_everybody_stands_before_the_first_token() -> None:
    engine = VirtualEngine(max_num_seqs=1, step_s=1.0)
    engine.submit("a", prompt_of(200), max_tokens=2)
    engine.submit("b", prompt_of(100), max_tokens=2)
    engine.submit("c", prompt_of(50), max_tokens=2)
    assert engine.scheduler.progress()["a"].position == 1
    assert engine.scheduler.progress()["a"].prefill_s is None
    engine.step()
    engine.step()
    progress = engine.scheduler.progress()
    assert [progress[name].position for name in "abc"] == [0, 1, 2]
    assert [progress[name].num_computed_tokens for name in "abc"] == [128, 0, 0]
    assert [progress[name].num_prompt_tokens for name in "abc"] == [200, 100, 50]
    missing = [72, 172, 222]
    assert [progress[name].prefill_s for name in "abc"] == pytest.approx(
        [tokens / 64 for tokens in missing]
    )
    engine.run_until_idle()
    assert engine.scheduler.progress() == {}


@pytest.mark.parametrize("depth", [0, 1])
def test_deadline_after_the_start_is_a_length_end(depth: int) -> None:
    engine = VirtualEngine(step_s=1.0, depth=depth)
    engine.submit("a", PROMPT, max_tokens=100, deadline_s=5.0)
    engine.run_until_idle()
    assert engine.end("a").finish_reason is FinishReason.LENGTH
    assert engine.tokens("a") == expected_outputs(PROMPT, 100)[: len(engine.tokens("a"))]
    assert 4 <= len(engine.tokens("a")) <= 5
    assert engine.is_empty()


def test_failed_step_ends_its_requests_only() -> None:
    engine = VirtualEngine(max_num_seqs=2)
    for name in ("a", "b", "c"):
        engine.submit(name, PROMPT, max_tokens=8)
    for _ in range(3):
        engine.step()
    engine.step(fails=True)
    engine.run_until_idle()
    failed = [name for name in ("a", "b", "c") if engine.end(name).error is not None]
    assert failed
    assert "c" not in failed
    assert engine.end(failed[0]).error.kind == "StepFailed"
    assert engine.tokens("c") == expected_outputs(PROMPT, 8)
    assert engine.is_empty()


def test_row_that_is_not_finite_fails_alone() -> None:
    engine = VirtualEngine()
    for name in ("a", "b", "c"):
        engine.submit(name, PROMPT, max_tokens=8)
    for _ in range(7):
        engine.step()
    victim = engine.scheduler.running[1]
    engine.model.bad_slots = {victim.cache.state_slot}
    engine.step()
    engine.model.bad_slots = set()
    engine.run_until_idle()
    assert engine.end("b").error.kind == "NonFiniteOutput"
    assert engine.tokens("a") == engine.tokens("c") == expected_outputs(PROMPT, 8)
    assert engine.is_empty()


def test_logprobs_come_only_where_asked_for() -> None:
    engine = VirtualEngine()
    engine.submit("none", PROMPT, max_tokens=2)
    engine.submit("drawn", PROMPT, max_tokens=2, num_logprobs=0)
    engine.submit("top", PROMPT, max_tokens=2, num_logprobs=1)
    engine.run_until_idle()
    assert all(delta.logprobs is None for delta in engine.deltas["none"])
    (entry,) = engine.deltas["drawn"][0].logprobs
    assert (entry.logprob, entry.top) == (-0.5, [])
    (entry,) = engine.deltas["top"][0].logprobs
    assert entry.top == [(entry.token_id, -0.5)]


def test_plans_are_committed_in_order() -> None:
    engine = VirtualEngine()
    engine.submit("a", PROMPT, max_tokens=4)
    plan = engine.scheduler.schedule()
    with pytest.raises(IntegrityError, match="not the oldest in flight"):
        engine.scheduler.commit(SchedulerOutput(99), StepResult())
    engine.scheduler.schedule()
    with pytest.raises(IntegrityError, match="commit one first"):
        engine.scheduler.schedule()
    engine.scheduler.commit(plan, engine.model.run(plan))


def test_standstill_is_an_error_and_not_silence() -> None:
    engine = VirtualEngine(num_pages=8)
    engine.cache.admit(
        Admission(max_tokens=8 * 16)
    )  # somebody holds every page and never gives them back
    spec = EngineRequest(request_id="a", token_ids=PROMPT)
    engine.scheduler.add(make_request(spec, engine.limits, arrival_s=0.0))
    with pytest.raises(IntegrityError, match="1 requests and none can make progress"):
        engine.scheduler.schedule()


def test_token_of_a_step_in_flight_is_named_by_row() -> None:
    engine = VirtualEngine(depth=1)
    engine.submit("a", PROMPT, max_tokens=3)
    engine.submit("b", PROMPT, max_tokens=3)
    engine.run_until_idle()
    pending = [row for plan in engine.plans for row in plan.decode if row.token_id is None]
    assert pending
    assert all(row.previous_row is not None for row in pending)
    assert engine.tokens("a") == engine.tokens("b") == expected_outputs(PROMPT, 3)


def test_metrics_count_what_happened() -> None:
    engine = VirtualEngine(step_s=1.0)
    engine.submit("a", prompt_of(100), max_tokens=3)
    engine.run_until_idle()
    metrics = engine.metrics
    assert (metrics.prompt_tokens, metrics.generation_tokens) == (100, 3)
    assert metrics.requests_finished == 1
    assert metrics.time_to_first_token_s.snapshot().total == pytest.approx(2.0)
    assert metrics.inter_token_s.snapshot().total == pytest.approx(2.0)
    assert metrics.queue_s.snapshot().total == 0.0
