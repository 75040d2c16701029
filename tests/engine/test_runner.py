"""Plans become tensors, tensors become results: on the counting model, through the scheduler."""

from __future__ import annotations

import pytest
import torch

from support.paged_counter import VOCAB_SIZE, expected_outputs
from support.stepped import SteppedCore
from support.tensor_core import tensor_core
from trnrt_engine.plan import StepResult
from trnrt_engine.runner import LaunchedStep
from trnrt_kernels.sampling import StepOutputs

PROMPT = [3, 1, 4, 1, 5]


class Session(SteppedCore):
    """A stepped core on the counting model."""

    def __init__(self, **fields) -> None:
        core, self.model = tensor_core(**fields)
        super().__init__(core)


@pytest.mark.parametrize("num_steps_ahead", [0, 1])
def test_batches_of_mixed_lengths_hold_each_requests_tokens(num_steps_ahead: int) -> None:
    session = Session(num_steps_ahead=num_steps_ahead)
    prompts = [[(i * 17 + p) % VOCAB_SIZE for p in range(i * 23 + 1)] for i in range(7)]
    for index, prompt in enumerate(prompts):
        session.submit(f"r{index}", prompt, max_tokens=20)
    session.run()
    for index, prompt in enumerate(prompts):
        assert session.tokens(f"r{index}") == expected_outputs(prompt, 20)


@pytest.mark.parametrize("num_steps_ahead", [0, 1])
def test_prior_output_is_forced_through_the_model(num_steps_ahead: int) -> None:
    session = Session(num_steps_ahead=num_steps_ahead)
    whole = expected_outputs(PROMPT, 12)
    session.submit("resumed", PROMPT, prior=whole[:5], max_tokens=12)
    session.submit("other", PROMPT, max_tokens=12)
    session.run()
    assert session.tokens("resumed") == whole[5:]
    assert session.tokens("other") == whole


def test_resumed_request_counts_its_prior_output_once() -> None:
    """Penalties see the same counts whether a request was resumed or not."""
    settings = {"max_tokens": 14, "frequency_penalty": 2.0, "presence_penalty": 2.0}
    session = Session()
    session.submit("whole", PROMPT, **settings)
    session.run()
    whole = session.tokens("whole")
    assert whole != expected_outputs(PROMPT, 14)
    for num_prior in (1, 4, 9):
        session.submit(f"after{num_prior}", PROMPT, prior=whole[:num_prior], **settings)
    session.run()
    for num_prior in (1, 4, 9):
        assert session.tokens(f"after{num_prior}") == whole[num_prior:]


def test_slot_forgets_its_last_owners_sampling() -> None:
    session = Session(max_num_seqs=1)
    session.submit("biased", PROMPT, logit_bias={7: 100.0}, max_tokens=5)
    session.submit("sampled", PROMPT, top_k=1, temperature=1.0, max_tokens=5)
    session.run()
    assert session.tokens("biased") == [7] * 5
    assert session.tokens("sampled") == expected_outputs(PROMPT, 5)


def test_min_tokens_bans_the_models_end_in_the_step() -> None:
    free_run = expected_outputs(PROMPT, 10)
    session = Session(eos_token_ids=(free_run[0],))
    session.submit("a", PROMPT, max_tokens=10)
    session.submit("b", PROMPT, max_tokens=10, min_tokens=4)
    session.run()
    assert session.tokens("a") == free_run[:1]
    assert free_run[0] not in session.tokens("b")[:4]
    assert len(session.tokens("b")) >= 5


def test_logprobs_come_in_order_and_number() -> None:
    session = Session()
    session.submit("a", PROMPT, max_tokens=3, num_logprobs=4)
    session.submit("b", PROMPT, max_tokens=3, num_logprobs=0)
    session.run()
    for delta in session.deltas["a"]:
        (entry,) = delta.logprobs
        values = [logprob for _, logprob in entry.top]
        assert len(values) == 4
        assert values == sorted(values, reverse=True)
        assert entry.top[0] == (entry.token_id, entry.logprob)
    assert [d.logprobs[0].top for d in session.deltas["b"]] == [[], [], []]
    drawn = [d.logprobs[0].logprob for d in session.deltas["b"]]
    assert drawn == [d.logprobs[0].logprob for d in session.deltas["a"]]


def test_only_steps_that_compute_are_timed() -> None:
    session = Session()
    session.submit("a", PROMPT, max_tokens=4)
    session.run()
    session.step()  # nothing to do
    assert sum(session.core.metrics.step_s.snapshot().counts) == session.core.metrics.steps == 4


def test_steps_are_padded_to_the_smallest_bucket() -> None:
    session = Session()
    for index in range(3):
        session.submit(f"r{index}", PROMPT, max_tokens=4)
    session.run()
    assert session.model.shapes[0] == (16, 1)
    assert (4, 1) in session.model.shapes
    assert {rows for rows, _ in session.model.shapes} <= {1, 2, 4, 16, 64}


def test_row_with_nan_fails_alone() -> None:
    session = Session()
    for name in ("a", "b", "c"):
        session.submit(name, PROMPT, max_tokens=10)
    for _ in range(7):
        session.step()
    session.model.poisoned_slots = {session.core.scheduler.running[1].cache.state_slot}
    session.step()
    session.model.poisoned_slots = set()
    session.run()
    assert session.deltas["b"][-1].error.kind == "NonFiniteOutput"
    assert session.tokens("a") == session.tokens("c") == expected_outputs(PROMPT, 10)


def test_failed_step_does_not_harm_the_step_made_ahead_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session = Session(num_steps_ahead=1)
    session.submit("stream", PROMPT, max_tokens=12)
    for _ in range(4):
        session.step()

    def run_out_of_memory(*args: object) -> None:
        raise MemoryError("no room for a chunk")

    session.submit("lost", PROMPT, max_tokens=12)
    with monkeypatch.context() as patch:
        patch.setattr(session.model, "prefill", run_out_of_memory)
        session.step()  # launches the chunk that fails
    session.submit("later", PROMPT, max_tokens=12)
    session.run()
    assert "no room for a chunk" in session.end("lost").error.message
    assert session.tokens("stream") == session.tokens("later") == expected_outputs(PROMPT, 12)
    assert session.is_all_free()


def test_step_without_a_draw_has_an_empty_result() -> None:
    assert LaunchedStep(None, 1).result() == StepResult()


def test_padding_rows_are_dropped_from_the_result() -> None:
    outputs = StepOutputs(
        token_ids_B=torch.tensor([4, 5, 6]),
        logprobs_B=torch.tensor([-0.5, -1.0, -2.0]),
        top_ids_BK=torch.tensor([[4, 1], [5, 2], [6, 3]]),
        top_logprobs_BK=torch.tensor([[-0.5, -1.5], [-1.0, -2.0], [0.0, 0.0]]),
        is_finite_B=torch.tensor([True, False, False]),
    )
    assert LaunchedStep(outputs, 2).result() == StepResult(
        token_ids=[4, 5],
        logprobs=[-0.5, -1.0],
        top=[[(4, -0.5), (1, -1.5)], [(5, -1.0), (2, -2.0)]],
        is_finite=[True, False],
    )
