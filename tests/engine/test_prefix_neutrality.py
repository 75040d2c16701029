"""On the real model, strict: a hit of the prefix cache changes no bit of an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from support.stepped import SteppedCore
from support.tiny_engine import tiny_core
from trnrt_engine.api import CacheControl, CacheMode, FinishReason

if TYPE_CHECKING:
    from trnrt_kernels.models.glm5_next.model import Model

LENGTHS = [63, 64, 65, 127, 128, 129, 255, 256, 257, 319, 320, 321]
TAIL = {"max_tokens": 4, "num_logprobs": 3}
OFF = CacheControl(mode=CacheMode.OFF)


def tokens_of(seed: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1280, (length,), generator=generator).tolist()


def cached_core(model: Model, **fields) -> SteppedCore:
    return SteppedCore(tiny_core(model, **{"num_bundle_slots": 24, **fields}))


def answer(engine: SteppedCore, name: str, prompt: list[int], **fields) -> tuple:
    engine.submit(name, prompt, **TAIL, **fields)
    engine.run()
    return engine.tokens(name), engine.logprobs(name)


def cold(engine: SteppedCore, name: str, prompt: list[int]) -> tuple:
    result = answer(engine, name, prompt, cache=OFF)
    assert engine.end(name).num_cached_tokens == 0
    return result


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("page_size", [64, 256])
def test_an_identical_prompt_computes_its_last_grid_step_and_no_more(
    tiny_model: Model, length: int, page_size: int
) -> None:
    engine, prompt = cached_core(tiny_model, page_size=page_size), tokens_of(length, length)
    expected = cold(engine, "cold", prompt)
    assert answer(engine, "first", prompt) == expected
    assert answer(engine, "again", prompt) == expected
    assert engine.end("first").num_cached_tokens == 0
    assert engine.end("again").num_cached_tokens == (length - 1) // 64 * 64
    assert engine.is_all_free()


def test_a_poisoned_state_is_not_cached(tiny_model: Model) -> None:
    engine, prompt = cached_core(tiny_model, max_num_batched_tokens=64), tokens_of(3, 200)
    expected = cold(engine, "cold", prompt)
    engine.submit("bad", prompt, **TAIL)
    engine.step()
    slot = engine.core.scheduler.running[0].cache.state_slot
    for layer in engine.core.runner.caches.layers:
        if "kda_state" in layer:
            layer["kda_state"][slot] = float("nan")
    engine.run()
    assert engine.end("bad").finish_reason is FinishReason.ERROR
    assert engine.core.cache.num_bundles == 0
    assert answer(engine, "good", prompt) == expected
    assert engine.end("good").num_cached_tokens == 0
