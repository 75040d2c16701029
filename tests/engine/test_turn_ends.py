"""The end of a session's turn is kept, and its next turn begins there: scheduler and caches."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.paged_counter import expected_outputs
from support.virtual_engine import VirtualEngine
from trnrt_engine.api import CacheControl, CacheMode
from trnrt_engine.cache.bundles import Kind, Part

SESSION = CacheControl(session_id="s")


def make(**fields) -> VirtualEngine:
    defaults = {"page_size": 64, "num_pages": 24, "max_model_len": 1024, "num_bundle_slots": 12}
    return VirtualEngine(**defaults | fields)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return [(seed * 31 + index * 7 + index // 97) % 97 for index in range(length)]


def ask(
    engine: VirtualEngine, name: str, prompt: list[int], *, outputs: int = 9, **fields
) -> list[int]:
    """Run a request alone, check its answer, return the next turn's history."""
    fields = {"cache": SESSION, **fields}
    engine.submit(name, prompt, max_tokens=outputs, **fields)
    engine.run_until_idle()
    assert engine.tokens(name) == expected_outputs(prompt, outputs)
    return prompt + engine.tokens(name)


def hit(engine: VirtualEngine, name: str) -> tuple[int, str]:
    return engine.end(name).num_cached_tokens, engine.deltas[name][0].cache_report.reason


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("page_size", [64, 256])
@pytest.mark.parametrize("length", [1, 60, 63, 64, 65, 119, 120, 128, 180, 200])
def test_the_next_turn_begins_where_the_last_one_ended(
    length: int, page_size: int, depth: int
) -> None:
    engine = make(page_size=page_size, depth=depth)
    history = ask(engine, "0", prompt_of(length))
    for turn in range(1, 5):
        ended_at = len(history) - (0 if depth and turn else 1)
        history = ask(engine, str(turn), history + prompt_of(30 * turn, turn))
        position, reason = hit(engine, str(turn))
        assert reason == "turn_end"
        assert ended_at - 1 <= position <= ended_at
        assert engine.end(str(turn)).num_prompt_tokens - position <= 30 * turn + 1
    assert engine.is_empty()


def test_nothing_but_the_new_tokens_is_computed() -> None:
    engine = make()
    history = ask(engine, "a", prompt_of(150))
    first = len(engine.plans)
    ask(engine, "b", history + prompt_of(100, 1))
    chunks = [plan.prefill for plan in engine.plans[first:] if plan.prefill]
    # The last token was drawn and not computed; then back to the grid, then on it.
    assert [(c.start, len(c.token_ids)) for c in chunks] == [(158, 34), (192, 64), (256, 3)]
    assert sum(len(chunk.token_ids) for chunk in chunks) == 101


def test_what_the_next_turn_adds_is_published_on_the_grid() -> None:
    engine = make()
    history = ask(engine, "a", prompt_of(150))
    prompt = history + prompt_of(200, 1)
    ask(engine, "b", prompt)
    ask(engine, "c", prompt, cache=CacheControl())
    assert hit(engine, "c") == ((len(prompt) - 1) // 64 * 64, "hit")
    assert engine.is_empty()


def test_only_the_session_of_that_salt_finds_it() -> None:
    engine = make()
    history = [*ask(engine, "a", prompt_of(150)), 5, 6]
    for name, fields in {
        "none": {"cache": CacheControl(mode=CacheMode.READ)},
        "other": {"cache": CacheControl(mode=CacheMode.READ, session_id="t")},
        "salt": {"cache_salt": "x", "cache": CacheControl(mode=CacheMode.READ, session_id="s")},
        "off": {"cache": CacheControl(mode=CacheMode.OFF, session_id="s")},
    }.items():
        ask(engine, name, history, **fields)
        assert hit(engine, name)[1] != "turn_end"
    ask(engine, "reader", history, cache=CacheControl(mode=CacheMode.READ, session_id="s"))
    assert hit(engine, "reader") == (158, "turn_end")
    ask(engine, "again", history)
    assert hit(engine, "again") == (158, "turn_end")


def test_another_history_is_no_hit() -> None:
    engine = make()
    history = ask(engine, "a", prompt_of(150))
    ask(engine, "edited", [*history[:-3], 1, 2, 3, 4, 5])
    assert hit(engine, "edited") == (128, "hit")
    ask(engine, "shorter", history[:140])
    assert hit(engine, "shorter") == (128, "hit")


def test_a_session_keeps_one_and_an_engine_none_when_told_so() -> None:
    engine = make()
    history = prompt_of(150)
    for turn in range(4):
        history = ask(engine, str(turn), history + prompt_of(70, turn))
        kept = [b for b in engine.cache._prefix._order if b.kinds & Kind.TURN_END]
        assert len(kept) == 1
    exact = make(keeps_turns=False)
    history = ask(exact, "a", prompt_of(150))
    ask(exact, "b", [*history, 1])
    assert hit(exact, "b") == (128, "hit")


def test_aborts_and_failures_keep_nothing() -> None:
    engine = make()
    engine.submit("gone", prompt_of(100), max_tokens=50, cache=SESSION)
    for _ in range(8):
        engine.step()
    engine.abort("gone")
    engine.submit("late", prompt_of(100), max_tokens=90, cache=SESSION, deadline_s=0.2)
    engine.run_until_idle()
    assert not [b for b in engine.cache._prefix._order if b.kinds & Kind.TURN_END]
    assert engine.is_empty()


@pytest.mark.parametrize("fault", ["part", "position", "hash", "cache_id"])
def test_a_bundle_that_is_not_what_it_should_be_is_refused(fault: str) -> None:
    engine = make()
    history = ask(engine, "a", prompt_of(150))
    [bundle] = [b for b in engine.cache._prefix._order if b.kinds & Kind.TURN_END]
    if fault == "part":
        bundle.parts &= ~Part.OPEN_POOL
    elif fault == "position":
        bundle.position -= 1
    elif fault == "hash":
        bundle.prefix_hash = bytes(16)
    else:
        bundle.cache_id = b"another"
    ask(engine, "b", [*history, 1])
    assert hit(engine, "b") == (128, "hit")
    assert engine.is_empty()


def test_a_step_that_fails_with_the_copy_leaves_no_bundle() -> None:
    engine = make()
    history = ask_without_settling(engine, "a", prompt_of(150))
    engine.step(fails=True)
    ask(engine, "b", [*history, 1])
    assert hit(engine, "b") == (128, "hit")
    assert engine.is_empty()


def ask_without_settling(engine: VirtualEngine, name: str, prompt: list[int]) -> list[int]:
    """Run a request until its last token is out; its end is not yet copied."""
    engine.submit(name, prompt, max_tokens=9, cache=SESSION)
    while not any(d.finish_reason for d in engine.deltas.get(name, [])):
        engine.step()
    return prompt + engine.tokens(name)


def test_flush_and_time_to_live_forget_it() -> None:
    engine = make()
    history = ask(engine, "a", prompt_of(150))
    engine.cache.flush("")
    ask(engine, "b", [*history, 1])
    assert hit(engine, "b") == (0, "cold")
    short = make()
    history = ask(short, "a", prompt_of(150), cache=CacheControl(session_id="s", ttl_s=0.5))
    short.now_s += 1.0
    ask(short, "b", [*history, 1])
    assert hit(short, "b")[1] != "turn_end"


def test_without_a_slot_or_a_page_nothing_is_kept_and_nothing_is_lost() -> None:
    engine = make(num_bundle_slots=0)
    history = ask(engine, "a", prompt_of(150))
    ask(engine, "b", [*history, 1])
    assert hit(engine, "b")[0] == 0
    assert engine.cache.counters.skipped_bundles > 0
    full = make(num_pages=3, max_model_len=192)
    history = ask(full, "a", prompt_of(170))
    ask(full, "b", [*history, 1])
    assert full.is_empty()


turns = st.tuples(st.integers(0, 2), st.integers(1, 90), st.integers(1, 40), st.booleans())


@settings(max_examples=40, deadline=None)
@given(
    talk=st.lists(turns, min_size=2, max_size=14),
    page_size=st.sampled_from([64, 128, 256]),
    more_pages=st.integers(0, 6),
    num_bundle_slots=st.integers(1, 8),
    depth=st.sampled_from([0, 1]),
    max_num_seqs=st.integers(1, 3),
    swap_bytes=st.sampled_from([0, 10**6]),
)
def test_sessions_side_by_side_get_the_answers_of_a_fresh_engine(
    talk: list[tuple[int, int, int, bool]],
    page_size: int,
    more_pages: int,
    num_bundle_slots: int,
    depth: int,
    max_num_seqs: int,
    swap_bytes: int,
) -> None:
    engine = make(
        page_size=page_size,
        num_pages=-(-512 // page_size) + more_pages,
        max_model_len=512,
        num_bundle_slots=num_bundle_slots,
        depth=depth,
        max_num_seqs=max_num_seqs,
        swap_bytes=swap_bytes,
    )
    histories: dict[int, list[int]] = {0: [], 1: [], 2: []}
    asked: dict[str, tuple[int, list[int], int]] = {}
    pending: dict[int, str] = {}

    def finish() -> None:
        engine.run_until_idle()
        for session, name in pending.items():
            _, prompt, outputs = asked[name]
            assert engine.tokens(name) == expected_outputs(prompt, outputs)
            histories[session] = prompt + engine.tokens(name)
        pending.clear()

    for index, (session, new, outputs, waits) in enumerate(talk):
        if session in pending:
            finish()
        prompt = histories[session][-400:] + prompt_of(new, index)
        outputs = min(outputs, 512 - len(prompt))
        name = f"{session}/{index}"
        asked[name] = (session, prompt, outputs)
        pending[session] = name
        control = CacheControl(session_id=str(session))
        engine.submit(name, prompt, max_tokens=outputs, cache=control)
        for _ in range(7):
            engine.step()
        if waits:
            finish()
    finish()
    assert engine.is_empty()
