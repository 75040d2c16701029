"""The bound of the replay benchmark, where the best is known by hand."""

from __future__ import annotations

import pytest

from bench.offline_bound import bound_tokens
from trnrt_engine.cache.report import NOTHING
from trnrt_engine.simulate.replay import RequestOutcome
from trnrt_engine.simulate.sizes import EngineSizes
from trnrt_engine.simulate.trace import TraceRequest
from trnrt_kernels.serving import ServingShape

TOKENS = 6400


def outcomes_of(starts_s: dict[str, list[float]]) -> list[RequestOutcome]:
    """Sessions that send the same prompt, a block longer, at given times; each computed at once."""
    outcomes = []
    for place, (session, times_s) in enumerate(starts_s.items()):
        for turn, start_s in enumerate(times_s):
            blocks = [1000 * place + index for index in range(TOKENS // 64)]
            own = [1000 * place + 500 + turn]
            request = TraceRequest(
                id=f"{session}{turn}",
                session=session,
                num_tokens=TOKENS + 64,
                block_ids=blocks + own,
            )
            outcomes.append(RequestOutcome(request, start_s, start_s, start_s + 0.01, 0, NOTHING))
    return outcomes


def bound(starts_s: dict[str, list[float]], *, num_held: int) -> float:
    """Bound with room for what so many sessions hold between two requests."""
    shape = ServingShape.resolve(window=8192, index_kpool=4, backend="cpu", dtype="float32")
    sizes = EngineSizes(
        shape=shape,
        num_pages=num_held * TOKENS // shape.page_size,
        num_bundle_slots=num_held,
        page_bytes=shape.page_size,
        state_bytes=5000,
    )
    return bound_tokens(outcomes_of(starts_s), sizes)


def test_room_for_all_bounds_nothing() -> None:
    assert bound({"a": [0, 100], "b": [1, 101]}, num_held=2) == pytest.approx(2 * TOKENS)


def test_room_for_one_of_two_that_wait_at_once_is_room_for_one_hit() -> None:
    found = bound({"a": [0, 100], "b": [1, 101]}, num_held=1)
    assert TOKENS <= found <= 1.05 * TOKENS


def test_two_that_wait_one_after_the_other_share_the_room() -> None:
    found = bound({"a": [0, 100], "b": [110, 210]}, num_held=1)
    assert found == pytest.approx(2 * TOKENS, rel=0.05)


def test_a_short_wait_is_preferred_to_two_of_its_length() -> None:
    starts_s = {"long": [0, 200], "x": [0, 99], "y": [100, 199]}
    found = bound(starts_s, num_held=1)
    assert 2 * TOKENS <= found <= 2.1 * TOKENS
