"""Preemption, in virtual time: who gives way, and that nobody can tell from an answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.paged_counter import expected_outputs
from support.virtual_engine import VirtualEngine
from trnrt_engine.api import EngineRequest, FinishReason
from trnrt_engine.cache.live import LiveStatus
from trnrt_engine.cache.sequence import SequenceCache
from trnrt_engine.errors import IntegrityError
from trnrt_engine.preemption import choose_victim
from trnrt_engine.request import Request, RequestStatus
from trnrt_engine.scheduler import STANDSTILL_S

SWAP_BYTES = 10**6
WAYS = pytest.mark.parametrize("swap_bytes", [SWAP_BYTES, 0], ids=["swap", "recompute"])
DEPTHS = pytest.mark.parametrize("depth", [0, 1])


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [(seed * 31 + index * 7) % 97 for index in range(length)]


class Gate:
    """Holds every copy up while it is shut."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self._is_open.set()
        self.shut, self.open = self._is_open.clear, self._is_open.set

    def __call__(self) -> None:
        assert self._is_open.wait(60)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


def running(priority: int, arrival_s: float, *, computed: int = 5, cached: int = 0) -> Request:
    spec = EngineRequest(request_id=f"{priority}/{arrival_s}", token_ids=[1], priority=priority)
    return Request(
        spec=spec,
        arrival_s=arrival_s,
        max_output_tokens=9,
        stop_ids=frozenset(),
        status=RequestStatus.RUNNING,
        num_computed_tokens=computed,
        cache=SequenceCache(state_slot=0, num_cached_tokens=cached),
    )


def test_of_the_lowest_class_the_youngest_gives_way() -> None:
    high, old, young = running(0, 9.0), running(3, 1.0), running(3, 2.0)
    assert choose_victim([young, high, old]) is young
    assert choose_victim([old, high]) is old
    assert choose_victim([high, running(0, 8.0)]) is high


def test_nobody_gives_way_alone_or_before_it_had_a_step_or_beside_one_that_does() -> None:
    old, young = running(0, 1.0), running(0, 2.0)
    assert choose_victim([old]) is None
    assert choose_victim([]) is None
    assert choose_victim([old, running(0, 2.0, computed=4, cached=4)]) is None
    old.is_leaving = True
    assert choose_victim([old, young]) is None


@DEPTHS
@WAYS
def test_sequences_that_outgrow_the_pages_take_turns(swap_bytes: int, depth: int) -> None:
    engine = VirtualEngine(num_pages=12, swap_bytes=swap_bytes, depth=depth)
    for index in range(4):
        engine.submit(f"r{index}", prompt_of(10, index), max_tokens=110)
    engine.run_until_idle()
    for index in range(4):
        assert engine.tokens(f"r{index}") == expected_outputs(prompt_of(10, index), 110)
        assert engine.end(f"r{index}").num_output_tokens == 110
    counters = engine.cache.swap_counters
    way = "swap" if swap_bytes else "recompute"
    # A page that is taken sends one sequence away at most: eight pages a sequence.
    assert 2 <= counters.preemptions.total() <= 32
    assert set(counters.preemptions) == set(counters.resumes) == {way}
    assert counters.preemptions == counters.resumes
    assert counters.failed == 0
    assert engine.is_empty()


@WAYS
def test_the_oldest_is_never_sent_away(swap_bytes: int) -> None:
    engine = VirtualEngine(num_pages=12, swap_bytes=swap_bytes)
    for index in range(4):
        engine.submit(f"r{index}", prompt_of(10, index), max_tokens=110)
    engine.step()
    while not has_ended(engine, "r0"):
        assert engine.scheduler.running[0].request_id == "r0"
        engine.step()
    assert engine.cache.swap_counters.preemptions.total() > 0
    engine.run_until_idle()
    assert engine.is_empty()


@DEPTHS
@WAYS
@pytest.mark.parametrize("num_prior", [0, 3])
@pytest.mark.parametrize("steps_before", range(9))
def test_a_preempted_request_goes_on_where_it_was(
    steps_before: int, num_prior: int, swap_bytes: int, depth: int
) -> None:
    engine = VirtualEngine(swap_bytes=swap_bytes, depth=depth)
    whole = expected_outputs(prompt_of(150), 8)
    engine.submit("a", prompt_of(150), max_tokens=8, prior_output_ids=whole[:num_prior])
    engine.submit("b", prompt_of(20, 1), max_tokens=8)
    for _ in range(steps_before):
        engine.step()
    was_running = engine.scheduler.preempt("a")
    assert was_running == (steps_before > 0 and not has_ended(engine, "a"))
    engine.run_until_idle()
    assert engine.tokens("a") == whole[num_prior:]
    assert engine.tokens("b") == expected_outputs(prompt_of(20, 1), 8)
    assert engine.end("a").num_output_tokens == 8
    assert engine.cache.swap_counters.preemptions.total() <= was_running
    assert engine.is_empty()


def has_ended(engine: VirtualEngine, name: str) -> bool:
    return any(delta.finish_reason is not None for delta in engine.deltas.get(name, []))


def test_usage_is_that_of_the_first_admission() -> None:
    engine = VirtualEngine(page_size=64, num_bundle_slots=8, max_model_len=512, num_pages=16)
    engine.submit("first", prompt_of(200), max_tokens=2)
    engine.run_until_idle()
    engine.submit("cold", prompt_of(200, 3), max_tokens=30)
    engine.submit("warm", prompt_of(200), max_tokens=30)
    for _ in range(12):
        engine.step()
    for name in ("cold", "warm"):
        assert engine.scheduler.preempt(name)
    engine.run_until_idle()
    assert {d.num_cached_tokens for d in engine.deltas["cold"]} == {0}
    assert {d.num_cached_tokens for d in engine.deltas["warm"]} == {192}
    for name in ("cold", "warm"):
        assert sum(d.cache_report is not None for d in engine.deltas[name]) == 1
    # The prompt comes from the prefix cache, the outputs from decode steps.
    again = [p.prefill for p in engine.plans if p.prefill and p.prefill.request.prior_output_ids]
    assert [chunk.start for chunk in again] == [192, 192]
    assert engine.is_empty()


@WAYS
def test_a_hit_that_was_not_yet_copied_is_no_state_to_save(swap_bytes: int) -> None:
    engine = VirtualEngine(
        page_size=64, num_bundle_slots=8, max_model_len=512, num_pages=16, swap_bytes=swap_bytes
    )
    engine.submit("first", prompt_of(200), max_tokens=2)
    engine.run_until_idle()
    engine.submit("a", prompt_of(300, 1), max_tokens=2)
    engine.submit("b", prompt_of(200), max_tokens=9)
    engine.step()
    assert [r.num_computed_tokens for r in engine.scheduler.running] == [64, 192]
    assert engine.scheduler.preempt("b")
    engine.run_until_idle()
    assert engine.tokens("b") == expected_outputs(prompt_of(200), 9)
    assert engine.end("b").num_cached_tokens == 192
    assert engine.is_empty()


@pytest.mark.parametrize("num_entries", [0, 1, 3])
def test_what_does_not_fit_the_swap_space_is_computed_again(num_entries: int) -> None:
    engine = VirtualEngine(swap_bytes=300 * num_entries, num_pages=12)
    for index in range(4):
        engine.submit(f"r{index}", prompt_of(10, index), max_tokens=110)
    engine.run_until_idle()
    for index in range(4):
        assert engine.tokens(f"r{index}") == expected_outputs(prompt_of(10, index), 110)
    assert engine.cache.swap_counters.preemptions["recompute"] > 0
    assert engine.is_empty()


def preempted(engine: VirtualEngine, *, length: int = 100) -> Request:
    """Run a request for a while beside another and send it away."""
    engine.submit("a", prompt_of(length), max_tokens=20)
    engine.submit("other", prompt_of(20, 1), max_tokens=60)
    for _ in range(12):
        engine.step()
    assert engine.scheduler.preempt("a")
    [request] = engine.scheduler.waiting
    assert request.status is RequestStatus.PREEMPTED
    return request


def settle(engine: VirtualEngine, request: Request, status: LiveStatus) -> None:
    while request.admission.live.status is not status:
        engine.cache.wait_for_copies(1.0)
        engine.cache.poll()


@pytest.mark.parametrize("damage", ["byte", "gone", "header", "part"])
def test_a_damaged_bundle_is_refused_and_computed_again(damage: str) -> None:
    engine = VirtualEngine(swap_bytes=SWAP_BYTES)
    request = preempted(engine)
    settle(engine, request, LiveStatus.SAVED)
    bundle, space = request.admission.live, engine.cache.swap.space
    key = bundle.store_key(2)
    if damage == "byte":
        space._entries[key][0][70] ^= 1
    elif damage == "gone":
        space.remove(key)
    elif damage == "header":
        space.put(key, [memoryview(space._entries[bundle.store_key(3)][0])])
    else:
        bundle.position -= 1  # the tokens are those of another position
    engine.run_until_idle()
    assert engine.tokens("a") == expected_outputs(prompt_of(100), 20)
    assert engine.tokens("other") == expected_outputs(prompt_of(20, 1), 60)
    counters = engine.cache.swap_counters
    assert (counters.failed, counters.resumes["recompute"]) == (1, 1)
    assert engine.is_empty()
    assert space.num_bytes == space.num_promised_bytes == 0


def test_a_bundle_that_comes_late_is_computed_again(gate: Gate) -> None:
    engine = VirtualEngine(swap_bytes=SWAP_BYTES, copy_delay=gate)
    request = preempted(engine)
    settle(engine, request, LiveStatus.SAVED)
    gate.shut()
    engine.step()
    assert request.admission.live.status is LiveStatus.LOADING
    engine.now_s += 60.0
    for _ in range(40):
        engine.step()
    assert request.status is not RequestStatus.PREEMPTED
    gate.open()
    engine.run_until_idle()
    assert engine.tokens("a") == expected_outputs(prompt_of(100), 20)
    assert engine.cache.swap_counters.failed == 1
    assert engine.is_empty()


@pytest.mark.parametrize("status", [LiveStatus.SAVING, LiveStatus.SAVED, LiveStatus.LOADING])
@pytest.mark.parametrize("by", ["abort", "deadline"])
def test_an_end_while_it_is_away_frees_everything_within_two_steps(
    status: LiveStatus, by: str, gate: Gate
) -> None:
    engine = VirtualEngine(swap_bytes=SWAP_BYTES, copy_delay=gate, step_s=0.001)
    if status is LiveStatus.SAVING:
        gate.shut()
    engine.submit("a", prompt_of(100), max_tokens=20, deadline_s=5.0)
    engine.submit("other", prompt_of(20, 1), max_tokens=60)
    for _ in range(12):
        engine.step()
    engine.scheduler.preempt("a")
    [request] = engine.scheduler.waiting
    settle(engine, request, LiveStatus.SAVING if status is LiveStatus.SAVING else LiveStatus.SAVED)
    if status is LiveStatus.LOADING:
        gate.shut()
        engine.step()
        gate.open()
    assert request.admission.live.status is status
    told = engine.tokens("a")
    if by == "abort":
        engine.abort("a")
        assert engine.end("a").finish_reason is FinishReason.ABORT
    else:
        engine.now_s += 5.0
        engine.step()
        assert engine.end("a").finish_reason is FinishReason.LENGTH
    assert engine.tokens("a") == told == expected_outputs(prompt_of(100), 20)[: len(told)]
    for _ in range(2):
        engine.step()
        if status is LiveStatus.LOADING and engine.cache.is_copying:
            engine.cache.wait_for_copies(1.0)
    held = engine.scheduler.running[0].cache
    assert engine.cache.num_free_pages == engine.cache.num_pages - len(held.page_ids)
    assert engine.cache.num_free_state_slots == engine.cache.num_state_slots - 1
    gate.open()
    engine.run_until_idle()
    assert engine.is_empty()
    assert engine.cache.swap.space.num_promised_bytes == 0


def test_who_waits_for_a_page_waits_for_the_copy_and_the_others_go_on(gate: Gate) -> None:
    engine = VirtualEngine(swap_bytes=SWAP_BYTES, copy_delay=gate, num_pages=15, max_num_seqs=3)
    gate.shut()
    for index, length in enumerate((14, 2, 10)):
        engine.submit(f"r{index}", prompt_of(length, index), max_tokens=100)
    engine.step()
    assert len(engine.scheduler.running) == 3
    while not engine.scheduler.waiting:
        engine.step()
    assert [r.request_id for r in engine.scheduler.waiting] == ["r2"]
    told = {name: len(engine.tokens(name)) for name in ("r0", "r1")}
    for _ in range(5):
        engine.step()
    assert len(engine.tokens("r0")) == told["r0"]
    assert len(engine.tokens("r1")) > told["r1"]
    gate.open()
    engine.run_until_idle()
    for index, length in enumerate((14, 2, 10)):
        assert engine.tokens(f"r{index}") == expected_outputs(prompt_of(length, index), 100)
    assert engine.is_empty()


def test_copies_that_never_end_are_an_error_and_not_silence(gate: Gate) -> None:
    engine = VirtualEngine(swap_bytes=SWAP_BYTES, copy_delay=gate)
    engine.submit("a", prompt_of(10), max_tokens=20)
    for _ in range(5):
        engine.step()
    gate.shut()
    engine.scheduler.preempt("a")
    assert engine.scheduler.schedule() is None
    engine.now_s += STANDSTILL_S
    assert engine.scheduler.schedule() is None
    engine.now_s += 1.0
    with pytest.raises(IntegrityError, match="1 requests and none can make progress"):
        engine.scheduler.schedule()


def test_a_preempted_prompt_goes_on_with_what_it_had_computed_and_publishes_the_rest() -> None:
    engine = VirtualEngine(
        page_size=64,
        num_bundle_slots=8,
        max_model_len=512,
        num_pages=16,
        swap_bytes=SWAP_BYTES,
    )
    engine.submit("a", prompt_of(400), max_tokens=3)
    for _ in range(3):
        engine.step()
    assert engine.scheduler.preempt("a")
    engine.run_until_idle()
    assert engine.tokens("a") == expected_outputs(prompt_of(400), 3)
    starts = [plan.prefill.start for plan in engine.plans if plan.prefill]
    assert starts == list(range(0, 400, 64))
    engine.submit("b", prompt_of(400), max_tokens=3)
    engine.run_until_idle()
    assert engine.end("b").num_cached_tokens == 384
    assert engine.is_empty()


def test_a_class_with_less_claim_gives_way_though_it_came_first() -> None:
    engine = VirtualEngine(num_pages=11, swap_bytes=SWAP_BYTES)
    engine.submit("low", prompt_of(10), max_tokens=90, priority=5)
    engine.submit("high", prompt_of(10, 1), max_tokens=90)
    engine.run_until_idle()
    assert engine.tokens("low") == expected_outputs(prompt_of(10), 90)
    assert engine.tokens("high") == expected_outputs(prompt_of(10, 1), 90)
    rows = [[row.request.request_id for row in plan.decode] for plan in engine.plans]
    assert rows[-1] == ["low"]
    assert engine.cache.swap_counters.preemptions["swap"] >= 1


def test_a_preempted_request_waits_before_those_that_never_ran() -> None:
    engine = VirtualEngine(max_num_seqs=1, swap_bytes=SWAP_BYTES)
    engine.submit("a", prompt_of(10), max_tokens=20)
    for _ in range(5):
        engine.step()
    engine.submit("b", prompt_of(10, 1), max_tokens=5)
    engine.scheduler.preempt("a")
    engine.run_until_idle()
    order = [row.request.request_id for plan in engine.plans for row in plan.decode]
    assert order == ["a"] * 19 + ["b"] * 4


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 80), st.integers(0, 1)),
        min_size=2,
        max_size=8,
    ),
    num_pages=st.integers(9, 16),
    max_num_seqs=st.integers(1, 5),
    prefill_ahead=st.integers(0, 2),
    depth=st.sampled_from([0, 1]),
    swap_bytes=st.sampled_from([0, 2_000, SWAP_BYTES]),
    preempted=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 7)), max_size=6),
)
def test_short_of_pages_every_answer_is_right_and_whole(
    lengths: list[tuple[int, int, int]],
    num_pages: int,
    max_num_seqs: int,
    prefill_ahead: int,
    depth: int,
    swap_bytes: int,
    preempted: list[tuple[int, int]],
) -> None:
    engine = VirtualEngine(
        num_pages=num_pages,
        max_num_seqs=max_num_seqs,
        prefill_ahead=prefill_ahead,
        depth=depth,
        swap_bytes=swap_bytes,
    )
    for index, (length, max_tokens, priority) in enumerate(lengths):
        prompt = prompt_of(length, index)
        engine.submit(f"r{index}", prompt, max_tokens=max_tokens, priority=priority)
    for step in range(61):
        for at, which in preempted:
            if at == step:
                engine.scheduler.preempt(f"r{which}")
                engine.scheduler.check_integrity()
        engine.step()
    engine.run_until_idle()
    for index, (length, max_tokens, _) in enumerate(lengths):
        assert engine.tokens(f"r{index}") == expected_outputs(prompt_of(length, index), max_tokens)
    counters = engine.cache.swap_counters
    grown = sum(-(-(length + tokens) // 16) for length, tokens, _ in lengths)
    assert counters.preemptions.total() <= grown + len(preempted)
    assert engine.is_empty()
