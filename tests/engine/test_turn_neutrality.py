"""On the real model: a turn that begins where the last one ended answers as a cold one does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from engine.test_prefix_neutrality import OFF, tokens_of
from support.stepped import SteppedCore
from support.tiny_engine import tiny_core
from trnrt_engine.api import CacheControl

if TYPE_CHECKING:
    from trnrt_kernels.models.glm5_next.model import Model

TOLERANCE = 1e-4  # of a logprob: decode and chunk form round differently
SESSION = CacheControl(session_id="s")


@pytest.mark.parametrize("page_size", [64, 256])
@pytest.mark.parametrize("length", [50, 62, 120])
def test_turns_agree_with_cold_ones(tiny_model: Model, length: int, page_size: int) -> None:
    engine = SteppedCore(tiny_core(tiny_model, num_bundle_slots=12, page_size=page_size))
    cold = SteppedCore(tiny_core(tiny_model, max_num_seqs=1))
    history = tokens_of(length, length)
    for turn in range(3):
        prompt = history + (tokens_of(turn, 40 * turn) if turn else [])
        for one, control in ((engine, SESSION), (cold, OFF)):
            one.submit(str(turn), prompt, max_tokens=9, num_logprobs=5, cache=control)
            one.run()
        assert engine.tokens(str(turn)) == cold.tokens(str(turn))
        pairs = zip(engine.logprobs(str(turn)), cold.logprobs(str(turn)), strict=True)
        for given, wanted in pairs:
            assert given.logprob == pytest.approx(wanted.logprob, abs=TOLERANCE)
            assert [entry[0] for entry in given.top] == [entry[0] for entry in wanted.top]
        if turn:
            assert engine.report(str(turn)).reason == "turn_end"
            assert engine.end(str(turn)).num_cached_tokens == len(history) - 1
        history = prompt + engine.tokens(str(turn))
    assert engine.is_all_free()


def test_an_exact_cache_answers_bit_for_bit(tiny_model: Model) -> None:
    engine = SteppedCore(tiny_core(tiny_model, num_bundle_slots=12, is_exact_cache=True))
    cold = SteppedCore(tiny_core(tiny_model, max_num_seqs=1))
    history = tokens_of(1, 100)
    for turn in range(2):
        for one, control in ((engine, SESSION), (cold, OFF)):
            one.submit(str(turn), history, max_tokens=9, num_logprobs=5, cache=control)
            one.run()
        assert engine.logprobs(str(turn)) == cold.logprobs(str(turn))
        history = history + engine.tokens(str(turn)) + tokens_of(turn, 30)
    assert engine.report("1").reason == "hit"
    assert engine.end("1").num_cached_tokens == 64
