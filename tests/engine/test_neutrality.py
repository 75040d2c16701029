"""On the real model, strict: what a request gets depends on nothing but the request, bit by bit.

Random traffic is in `test_law`; here is what a program must hit exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
import torch

from support.stepped import SteppedCore
from support.tiny_engine import tiny_core

if TYPE_CHECKING:
    from trnrt_kernels.models.glm5_next.model import Model

VOCAB_SIZE = 1280


@dataclass(frozen=True)
class Ask:
    """A request."""

    seed: int
    length: int
    max_tokens: int
    sampling: dict = field(default_factory=dict, hash=False)

    @property
    def prompt(self) -> list[int]:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(VOCAB_SIZE, (self.length,), generator=generator).tolist()

    def submit_to(self, engine: SteppedCore, name: str, **more) -> None:
        engine.submit(name, self.prompt, max_tokens=self.max_tokens, **self.sampling, **more)


SAMPLINGS = (
    {},
    {"num_logprobs": 5},
    {"temperature": 1.0, "seed": 3, "num_logprobs": 0},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "seed": 4},
    {"temperature": 1.2, "min_p": 0.02, "frequency_penalty": 0.7, "presence_penalty": 0.3},
    {"repetition_penalty": 1.3, "logit_bias": {5: 3.0, 9: -100.0}},
)


def alone(model: Model, ask: Ask) -> tuple[list[int], list[object]]:
    engine = SteppedCore(tiny_core(model, max_num_seqs=1, max_num_batched_tokens=512))
    ask.submit_to(engine, "r")
    engine.run()
    return engine.tokens("r"), engine.logprobs("r")


@pytest.mark.parametrize("chunk", [64, 128, 192, 256, 320, 448])
def test_cuts_on_the_grid_change_nothing(tiny_model: Model, chunk: int) -> None:
    ask = Ask(seed=1, length=470, max_tokens=6, sampling={"num_logprobs": 3})
    engine = SteppedCore(tiny_core(tiny_model, max_num_batched_tokens=chunk))
    ask.submit_to(engine, "r")
    engine.run()
    assert (engine.tokens("r"), engine.logprobs("r")) == alone(tiny_model, ask)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("num_prior", [1, 3])
def test_resumed_request_goes_on_with_the_same_tokens(
    tiny_model: Model, sampling: dict, num_prior: int
) -> None:
    ask = Ask(seed=2, length=70, max_tokens=8, sampling=sampling)
    tokens, logprobs = alone(tiny_model, ask)
    engine = SteppedCore(tiny_core(tiny_model))
    Ask(seed=5, length=90, max_tokens=8).submit_to(engine, "other")
    ask.submit_to(engine, "r", prior=tokens[:num_prior])
    engine.run()
    assert engine.tokens("r") == tokens[num_prior:]
    assert engine.logprobs("r") == logprobs[num_prior:]
    assert engine.end("r").num_output_tokens == 8


def test_choices_of_a_request_differ_and_repeat(tiny_model: Model) -> None:
    sampled = {"temperature": 1.0, "seed": 11}
    ask = Ask(seed=3, length=20, max_tokens=8, sampling=sampled)
    other = Ask(seed=3, length=20, max_tokens=8, sampling={**sampled, "seed": 12})
    assert alone(tiny_model, ask) == alone(tiny_model, ask)
    assert alone(tiny_model, ask) != alone(tiny_model, other)


def test_stop_ids_and_min_tokens_act_in_the_step(tiny_model: Model) -> None:
    free_run, _ = alone(tiny_model, Ask(seed=4, length=40, max_tokens=8))
    eos = free_run[2]
    engine = SteppedCore(tiny_core(tiny_model, eos_token_ids=(eos,)))
    ask = Ask(seed=4, length=40, max_tokens=8)
    ask.submit_to(engine, "stops")
    ask.submit_to(engine, "ignores", ignore_eos=True)
    ask.submit_to(engine, "waits", min_tokens=8)
    engine.run()
    assert engine.tokens("stops") == free_run[:3]
    assert engine.end("stops").stop_token_id == eos
    assert engine.tokens("ignores") == free_run
    assert len(engine.tokens("waits")) == 8
    assert eos not in engine.tokens("waits")


def test_window_is_filled_to_its_last_token(tiny_model: Model) -> None:
    window = tiny_model.config.max_position_embeddings
    engine = SteppedCore(tiny_core(tiny_model))
    Ask(seed=6, length=window - 1, max_tokens=50).submit_to(engine, "one")
    Ask(seed=6, length=window - 5, max_tokens=50).submit_to(engine, "five")
    engine.run()
    assert (len(engine.tokens("one")), len(engine.tokens("five"))) == (1, 5)
    assert engine.is_all_free()


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_nan_in_one_state_fails_that_request_alone(tiny_model: Model, victim: int) -> None:
    batch = [Ask(seed=20 + i, length=30 + 40 * i, max_tokens=12) for i in range(3)]
    expected = [alone(tiny_model, ask)[0] for ask in batch]
    engine = SteppedCore(tiny_core(tiny_model))
    for index, ask in enumerate(batch):
        ask.submit_to(engine, f"r{index}")
    for _ in range(9):
        engine.step()
    running = {request.request_id: request for request in engine.core.scheduler.running}
    slot = running[f"r{victim}"].cache.state_slot
    layer = tiny_model.config.kda_layers[0]
    engine.core.runner.caches.layers[layer]["kda_state"][slot] = float("nan")
    engine.run()
    for index, tokens in enumerate(expected):
        if index == victim:
            assert engine.end(f"r{index}").error.kind == "NonFiniteOutput"
            assert engine.tokens(f"r{index}") == tokens[: len(engine.tokens(f"r{index}"))]
        else:
            assert engine.tokens(f"r{index}") == tokens
    assert engine.is_all_free()
    for index, ask in enumerate(batch):
        ask.submit_to(engine, f"again{index}")
    engine.run()
    for index, tokens in enumerate(expected):
        assert engine.tokens(f"again{index}") == tokens
