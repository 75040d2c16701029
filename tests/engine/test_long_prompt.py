"""A prompt as long as the window: answered, hit by its next turn, spilled, loaded back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from support.long_prompt import (
    NUM_OUTPUTS,
    TURN_TOKENS,
    LongEngine,
    cache_arithmetic,
    live_long,
)
from trnrt_kernels.serving import GRID


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("window", "store_gib"),
    [
        pytest.param(2048, 0.125, id="2k"),
        pytest.param(
            65_536, 0.25, marks=[pytest.mark.slow(minutes=4), pytest.mark.timeout(900)], id="64k"
        ),
    ],
)
def test_a_prompt_of_the_whole_window_lives_through_every_tier(tmp_path, window, store_gib):
    engine = LongEngine(tmp_path, window=window, store_gib=store_gib)
    caches = engine.caches
    geometry = caches.geometry
    assert caches.num_bytes == cache_arithmetic(
        num_pages=geometry.num_pages, page_size=geometry.page_size, num_slots=geometry.num_slots
    )
    # One page is left: a hit that ends inside of a page copies it, and both are held.
    num_tokens = window - 2 * NUM_OUTPUTS - TURN_TOKENS - geometry.page_size
    turns = live_long(engine, num_tokens, say=print)

    assert turns.cold.num_computed_tokens == num_tokens
    new_tokens = len(turns.turn) - num_tokens
    assert turns.next_turn.num_computed_tokens < new_tokens + GRID
    assert [a.report.tier for a in (turns.next_turn, turns.host, turns.disk)] == [
        *("device", "host", "disk")
    ]
    alone = engine.answer(turns.turn, salt="computed alone")
    assert alone.num_computed_tokens == len(turns.turn)
    for answer in (turns.next_turn, turns.host, turns.disk):
        assert answer.tokens == alone.tokens
    engine.core.scheduler.check_integrity()
    engine.close()
