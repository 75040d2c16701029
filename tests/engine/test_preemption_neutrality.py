"""On the real model, strict: a preempted request gets what it would have got undisturbed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from engine.test_neutrality import SAMPLINGS, Ask, alone
from support.stepped import SteppedCore
from support.tiny_engine import tiny_core

if TYPE_CHECKING:
    from trnrt_kernels.models.glm5_next.model import Model

MIB = 2**20
WAYS = pytest.mark.parametrize("swap_bytes", [64 * MIB, 0], ids=["swap", "recompute"])


def check(engine: SteppedCore, model: Model, asks: dict[str, Ask]) -> None:
    for name, ask in asks.items():
        assert (engine.tokens(name), engine.logprobs(name)) == alone(model, ask)
    while engine.core.cache.is_copying:
        engine.step()
    assert engine.is_all_free()
    engine.core.cache.close()


@WAYS
@pytest.mark.parametrize("sampling", [SAMPLINGS[2], SAMPLINGS[4], SAMPLINGS[5]], ids=str)
def test_sampling_goes_on_where_it_was(tiny_model: Model, sampling: dict, swap_bytes: int) -> None:
    """Penalties, bias, seed: the slot a request comes back to had another owner meanwhile."""
    engine = SteppedCore(tiny_core(tiny_model, swap_bytes=swap_bytes, max_num_seqs=2))
    asks = {"a": Ask(seed=2, length=70, max_tokens=8, sampling=sampling)}
    asks["a"].submit_to(engine, "a")
    for _ in range(5):
        engine.step()
    assert engine.core.scheduler.preempt("a")
    for index in range(2):
        name = f"other{index}"
        asks[name] = Ask(seed=50 + index, length=90, max_tokens=4, sampling=SAMPLINGS[4])
        asks[name].submit_to(engine, name)
    engine.run()
    way = "swap" if swap_bytes else "recompute"
    assert engine.core.cache.swap_counters.resumes == {way: 1}
    check(engine, tiny_model, asks)


@WAYS
@pytest.mark.parametrize(
    ("length", "num_steps_ahead"), [(1, 0), (62, 1), (64, 0), (127, 0), (130, 1), (257, 0)]
)
def test_any_position_can_be_left(
    tiny_model: Model, length: int, num_steps_ahead: int, swap_bytes: int
) -> None:
    """The open pools hold nothing, something, or all but one; the last page is full or begun."""
    ask = Ask(seed=length, length=length, max_tokens=8, sampling={"num_logprobs": 3})
    fields = {"swap_bytes": swap_bytes, "num_bundle_slots": 8, "max_num_batched_tokens": 128}
    engine = SteppedCore(tiny_core(tiny_model, num_steps_ahead=num_steps_ahead, **fields))
    ask.submit_to(engine, "a")
    for turn in range(4):
        for _ in range(turn % 3 + 1):
            engine.step()
        engine.core.scheduler.preempt("a")
    engine.run()
    check(engine, tiny_model, {"a": ask})
    assert engine.end("a").num_cached_tokens == 0


@WAYS
def test_sequences_that_outgrow_the_pages(tiny_model: Model, swap_bytes: int) -> None:
    engine = SteppedCore(
        tiny_core(tiny_model, swap_bytes=swap_bytes, num_pages=7, num_bundle_slots=6)
    )
    asks = {
        f"r{i}": Ask(seed=70 + i, length=125 + i, max_tokens=71, sampling=SAMPLINGS[4 + i])
        for i in range(2)
    }
    for name, ask in asks.items():
        ask.submit_to(engine, name)
    engine.run()
    assert engine.core.cache.swap_counters.preemptions.total() >= 1
    check(engine, tiny_model, asks)
