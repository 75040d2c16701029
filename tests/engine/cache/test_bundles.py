"""What a bundle must have to be hit: every declared part, also one that is declared later."""

from __future__ import annotations

from enum import IntFlag

import pytest

from support.virtual_engine import VirtualEngine
from trnrt_engine.cache import bundles, entries
from trnrt_engine.cache.bundles import GRID_PARTS, Part
from trnrt_engine.cache.entries import Entry, EntryKind

DRAFT = max(Part) << 1  # as a draft layer's cache would be declared
PROMPT = [index * 7 % 97 for index in range(200)]
CACHE_ID = bytes(range(32))


@pytest.fixture
def engine() -> VirtualEngine:
    """It has answered the prompt, and keeps a bundle behind 192 tokens of it."""
    engine = VirtualEngine(page_size=64, num_pages=16, max_model_len=512, num_bundle_slots=8)
    engine.submit("first", PROMPT, max_tokens=2)
    engine.run_until_idle()
    return engine


def declare_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    wider = IntFlag("Part", {**{part.name: part.value for part in Part}, "DRAFT_CACHE": DRAFT})
    for module in (bundles, entries):
        monkeypatch.setattr(module, "Part", wider)
        monkeypatch.setattr(module, "GRID_PARTS", wider(GRID_PARTS | DRAFT))


def num_cached(engine: VirtualEngine) -> int:
    engine.submit("again", PROMPT, max_tokens=2)
    engine.run_until_idle()
    assert engine.tokens("again") == engine.tokens("first")
    return engine.end("again").num_cached_tokens


def test_a_bundle_that_lacks_a_declared_part_is_refused(
    engine: VirtualEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare_draft(monkeypatch)
    assert num_cached(engine) == 0
    assert engine.deltas["again"][0].cache_report.reason == "mismatch"


def test_a_bundle_with_the_part_that_joined_is_hit(
    engine: VirtualEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare_draft(monkeypatch)
    for bundle in engine.cache._prefix._order:
        bundle.parts |= DRAFT
    assert num_cached(engine) == 192


@pytest.mark.parametrize("part", GRID_PARTS)
def test_no_declared_part_may_be_missing(engine: VirtualEngine, part: int) -> None:
    for bundle in engine.cache._prefix._order:
        bundle.parts &= ~part
    assert num_cached(engine) == 0


def test_an_entry_written_before_a_part_was_declared_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entry = Entry(EntryKind.STATES, 128, 192, bytes(16), b"", -1)
    before = entry.header(CACHE_ID)
    assert entry.defect(before, CACHE_ID) is None
    declare_draft(monkeypatch)
    assert EntryKind.STATES.parts & DRAFT
    assert str(entry.defect(before, CACHE_ID)).startswith("its parts is")
    assert entry.defect(entry.header(CACHE_ID), CACHE_ID) is None
