"""What requests leave in the prefix cache and find there: scheduler and caches, no tensors."""

from __future__ import annotations

import pytest

from support.paged_counter import expected_outputs
from support.virtual_engine import VirtualEngine
from trnrt_engine.api import CacheControl, CacheMode, CacheReport
from trnrt_engine.cache.report import Reason
from trnrt_engine.errors import InvalidRequest


def make(**fields) -> VirtualEngine:
    settings = {"page_size": 64, "num_pages": 16, "max_model_len": 512, "num_bundle_slots": 12}
    return VirtualEngine(**settings | fields)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [(seed * 31 + index * 7 + index // 97) % 97 for index in range(length)]


def ask(engine: VirtualEngine, name: str, prompt: list[int], **fields) -> int:
    """Run a request alone, check its answer, return what it did not compute."""
    engine.submit(name, prompt, max_tokens=3, **fields)
    engine.run_until_idle()
    assert engine.tokens(name) == expected_outputs(prompt, 3)
    return engine.end(name).num_cached_tokens


def report_of(engine: VirtualEngine, name: str) -> CacheReport:
    first, *later = engine.deltas[name]
    assert all(delta.cache_report is None for delta in later)
    return first.cache_report


@pytest.mark.parametrize("page_size", [64, 128, 256])
@pytest.mark.parametrize("length", [63, 64, 65, 127, 128, 129, 192, 255, 256, 257, 320])
def test_identical_prompts_hit_as_deep_as_they_can(length: int, page_size: int) -> None:
    engine = make(page_size=page_size)
    assert ask(engine, "a", prompt_of(length)) == 0
    assert ask(engine, "b", prompt_of(length)) == (length - 1) // 64 * 64
    assert engine.is_empty()


def test_a_prompt_is_hit_while_its_first_sender_still_runs() -> None:
    engine = make(page_size=128)
    engine.submit("a", prompt_of(200), max_tokens=60)
    for _ in range(10):
        engine.step()
    assert ask(engine, "b", prompt_of(200)) == 192
    assert engine.tokens("a") == expected_outputs(prompt_of(200), 60)
    assert engine.is_empty()


def test_marks_are_rounded_down_and_get_their_bundle_without_a_cut() -> None:
    engine = make(token_budget=320)
    ask(engine, "a", prompt_of(300), marks=[70, 200])
    [chunk] = [plan.prefill for plan in engine.plans if plan.prefill]
    assert [export.num_tokens for export in chunk.exports] == [64, 192, 256]
    assert ask(engine, "b", [*prompt_of(210), 1, 2]) == 192
    assert ask(engine, "c", [*prompt_of(90), 1, 2]) == 64


def test_of_too_many_bundles_the_most_valuable_are_taken() -> None:
    engine = make(token_budget=512)
    ask(engine, "a", prompt_of(448), marks=[64, 128, 192, 256, 320])
    [chunk] = [plan.prefill for plan in engine.plans if plan.prefill]
    assert [export.num_tokens for export in chunk.exports] == [64, 192, 256, 320]
    assert engine.cache.counters.skipped_bundles == 3


def test_the_second_prompt_pays_for_a_junction_and_the_third_profits() -> None:
    engine = make(token_budget=512, page_size=256)
    ask(engine, "a", prompt_of(330))
    assert ask(engine, "b", prompt_of(200) + prompt_of(90, 1)) == 0
    assert report_of(engine, "b") == CacheReport(
        kv_depth=192, state_depth=0, replayed=192, tier="", reason="no_bundle"
    )
    assert ask(engine, "c", prompt_of(200) + prompt_of(90, 2)) == 192
    assert report_of(engine, "c") == CacheReport(
        kv_depth=192, state_depth=192, replayed=0, tier="device", reason="hit"
    )


@pytest.mark.parametrize("page_size", [64, 128, 256])
@pytest.mark.parametrize("cut", [64, 100, 129, 192, 250, 256, 300])
def test_paths_part_anywhere(cut: int, page_size: int) -> None:
    engine, stem = make(token_budget=512, page_size=page_size), prompt_of(340)
    ask(engine, "stem", stem)
    for index in range(3):
        depth = ask(engine, f"fork{index}", stem[:cut] + prompt_of(70, 10 + index))
        report = report_of(engine, f"fork{index}")
        assert report.kv_depth >= cut // 64 * 64
        assert report.replayed == report.kv_depth - report.state_depth
        assert index == 0 or depth >= cut // 64 * 64
    assert ask(engine, "stem again", stem) == 320
    assert engine.is_empty()


def test_generated_tokens_never_enter() -> None:
    engine = make()
    engine.submit("a", prompt_of(64), max_tokens=200)
    engine.run_until_idle()
    longer = prompt_of(64) + engine.tokens("a")[:150]
    assert ask(engine, "b", longer) == 64
    assert report_of(engine, "b").kv_depth == 64


def test_modes() -> None:
    engine = make()
    off, read = CacheControl(mode=CacheMode.OFF), CacheControl(mode=CacheMode.READ)
    assert ask(engine, "off", prompt_of(200), cache=off) == 0
    assert ask(engine, "read nothing", prompt_of(200), cache=read) == 0
    assert ask(engine, "write", prompt_of(200)) == 0
    assert ask(engine, "off again", prompt_of(200), cache=off) == 0
    assert report_of(engine, "off again").reason == Reason.CACHING_OFF
    assert ask(engine, "read", prompt_of(330), cache=read) == 192
    assert ask(engine, "still", prompt_of(330)) == 192
    assert engine.is_empty()


def test_salts_are_apart_and_not_told_of_each_other() -> None:
    engine = make(num_bundle_slots=20)
    assert ask(engine, "a", prompt_of(150), cache_salt="a") == 0
    assert ask(engine, "b", prompt_of(150), cache_salt="b") == 0
    assert report_of(engine, "b").reason == Reason.COLD
    assert ask(engine, "n", prompt_of(150)) == 0
    assert ask(engine, "a2", prompt_of(150), cache_salt="a") == 128
    engine.cache.flush("a")
    assert ask(engine, "a3", prompt_of(150), cache_salt="a") == 0
    assert ask(engine, "b2", prompt_of(150), cache_salt="b") == 128


def test_reasons_say_why_not() -> None:
    engine = make(num_pages=6, max_model_len=384)
    ask(engine, "short", prompt_of(64, 7))
    ask(engine, "cold", prompt_of(300))
    ask(engine, "pushes", prompt_of(370, 1))
    ask(engine, "evicted", prompt_of(300))
    reasons = [report_of(engine, name).reason for name in ("short", "cold", "evicted")]
    assert reasons == [Reason.TOO_SHORT, Reason.COLD, Reason.EVICTED]
    assert engine.cache.counters.lookups == {Reason.TOO_SHORT: 1, Reason.COLD: 2, Reason.EVICTED: 1}
    assert engine.cache.counters.evicted_pages > 0


def test_a_bundle_of_another_build_or_without_a_part_is_refused() -> None:
    for damage in ({"cache_id": b"other"}, {"parts": 7}, {"prefix_hash": b"x"}):
        engine = make(page_size=128)
        ask(engine, "a", prompt_of(100))
        for bundle in engine.cache._prefix._order:
            for name, value in damage.items():
                setattr(bundle, name, value)
        assert ask(engine, "b", prompt_of(100)) == 0
        assert report_of(engine, "b").reason == Reason.MISMATCH


def test_time_to_live_starts_anew_with_every_use() -> None:
    engine, brief = make(), CacheControl(ttl_s=1.0)
    ask(engine, "a", prompt_of(200), cache=brief)
    engine.now_s += 0.8
    assert ask(engine, "b", prompt_of(200), cache=brief) == 192
    engine.now_s += 0.8
    assert ask(engine, "c", prompt_of(200), cache=brief) == 192
    engine.now_s += 1.1
    assert ask(engine, "d", prompt_of(200), cache=brief) == 0
    assert report_of(engine, "d").reason == Reason.EXPIRED


def test_a_pinned_session_survives_eviction_until_it_is_released() -> None:
    engine = make(num_pages=8, num_bundle_slots=4)
    pinned = CacheControl(pin=True, session_id="s")
    ask(engine, "a", prompt_of(130), cache=pinned)
    for seed in range(1, 5):
        ask(engine, f"p{seed}", prompt_of(300, seed))
    assert ask(engine, "b", prompt_of(130), cache=CacheControl(mode=CacheMode.READ)) == 128
    engine.cache.release_session("s")
    for seed in range(5, 9):
        ask(engine, f"p{seed}", prompt_of(300, seed))
    assert ask(engine, "c", prompt_of(130)) == 0
    assert engine.is_empty()


def test_a_pin_gives_way_to_a_request_that_could_never_run() -> None:
    engine = make(num_pages=8)
    ask(engine, "a", prompt_of(200), cache=CacheControl(pin=True, session_id="s"))
    assert ask(engine, "all", prompt_of(500, 1)) == 0
    assert engine.is_empty()


def test_a_hit_that_leaves_no_room_for_its_copy_is_given_up() -> None:
    engine = make(page_size=128, num_pages=4)
    ask(engine, "a", prompt_of(200))
    assert ask(engine, "b", prompt_of(200) + prompt_of(300, 1)) == 0
    assert report_of(engine, "b").reason == Reason.NO_ROOM


def test_an_aborted_prompt_leaves_what_it_computed_and_no_more() -> None:
    engine = make()
    engine.submit("a", prompt_of(240), max_tokens=4)
    engine.step()
    engine.abort("a")
    assert ask(engine, "b", prompt_of(240)) == 64


def test_a_failed_step_publishes_nothing() -> None:
    engine = make()
    engine.submit("a", prompt_of(240), max_tokens=4)
    engine.step()
    engine.step(fails=True)
    assert ask(engine, "b", prompt_of(240)) == 64


def test_what_turned_out_not_finite_is_taken_back_with_what_was_built_on_it() -> None:
    engine = make()
    engine.submit("bad", prompt_of(240), max_tokens=4)
    engine.step()
    engine.submit("heir", prompt_of(240) + prompt_of(90, 1), max_tokens=20)
    for _ in range(3):
        engine.step()
    engine.model.bad_slots = {engine.scheduler.running[0].cache.state_slot}
    while "bad" in {request.request_id for request in engine.scheduler.running}:
        engine.step()
    engine.model.bad_slots = set()
    engine.run_until_idle()
    assert engine.end("bad").finish_reason == "error"
    assert ask(engine, "good", prompt_of(240)) == 0
    assert engine.is_empty()


def test_without_a_slot_for_bundles_requests_run_and_are_counted() -> None:
    engine = make(num_bundle_slots=0)
    assert ask(engine, "a", prompt_of(200)) == 0
    assert ask(engine, "b", prompt_of(200)) == 0
    assert engine.cache.counters.skipped_bundles > 0
    assert engine.is_empty()


@pytest.mark.parametrize(
    ("control", "param"),
    [
        (CacheControl(ttl_s=0.0), "cache.ttl_s"),
        (CacheControl(ttl_s=float("inf")), "cache.ttl_s"),
        (CacheControl(pin=True), "cache.session_id"),
        (CacheControl(pin=True, session_id="s", mode=CacheMode.READ), "cache.pin"),
    ],
)
def test_controls_that_make_no_sense_are_refused(control: CacheControl, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make().submit("a", prompt_of(5), cache=control)
    assert caught.value.param == param
