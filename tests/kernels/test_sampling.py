"""The draw follows its rules, row by row, and traces into a graph."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from trnrt_kernels.counter_rng import philox, request_seed
from trnrt_kernels.logit_rules import keep_mask
from trnrt_kernels.sampling import (
    SamplingInputs,
    SamplingState,
    sample,
    sample_greedy,
    top_ids,
)

VOCAB = 50

NEUTRAL = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition": 1.0,
    "presence": 0.0,
    "frequency": 0.0,
    "seed": 0,
    "output_index": 0,
    "min_tokens": 0,
}
INTEGERS = ("top_k", "seed", "output_index", "min_tokens")


def make_inputs(*rows, slots=None, stop_ids=((),)):
    """Sampling inputs from one dict of settings a row; what is not given is off."""
    columns = {}
    for name, off in NEUTRAL.items():
        dtype = torch.int64 if name in INTEGERS else torch.float32
        columns[f"{name}_B"] = torch.tensor([row.get(name, off) for row in rows], dtype=dtype)
    lists = list(stop_ids) * len(rows) if len(stop_ids) == 1 else list(stop_ids)
    width = max(1, *(len(ids) for ids in lists))
    padded = [list(ids) + [-1] * (width - len(ids)) for ids in lists]
    return SamplingInputs(
        slots_B=torch.tensor(list(range(len(rows)) if slots is None else slots)),
        stop_ids_BN=torch.tensor(padded),
        **columns,
    )


def draw(logits, *rows, state=None, **kwargs):
    logits = torch.as_tensor(logits, dtype=torch.float32)
    state = state or SamplingState.allocate(max(16, len(rows)), logits.shape[1])
    return sample(logits, make_inputs(*rows, **kwargs), state)


def oracle(logits, settings):
    """(token, distance of the draw to the nearest border) in float64, written rank by rank."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if settings.get("temperature", 1.0) == 0:
        return order[0], 1.0
    scaled = np.array([logits[i] for i in order], dtype=np.float64)
    scaled = (scaled - scaled[0]) / settings.get("temperature", 1.0)
    probs = np.exp(scaled) / np.exp(scaled).sum()
    top_k = settings.get("top_k", 0)
    if top_k:
        probs = probs[:top_k]
    margin = 1.0
    top_p = settings.get("top_p", 1.0)
    if top_p < 1.0:
        share, kept = 0.0, 0
        for prob in probs:
            margin = min(margin, abs(share - top_p)) if kept else margin
            if kept and share >= top_p:
                break
            share += prob / probs.sum()
            kept += 1
        else:
            margin = min(margin, abs(share - top_p))
        probs = probs[:kept]
    min_p = settings.get("min_p", 0.0)
    if min_p:
        margin = min(margin, np.abs(probs / probs[0] - min_p).min()) if min_p < 1.0 else margin
        probs = probs[probs >= min_p * probs[0]]
    words = philox((settings.get("output_index", 0), 0, 0, 0), (settings.get("seed", 0), 0))
    number = (words[0] >> 8) / 2**24
    borders = probs.cumsum() / probs.sum()
    margin = min(margin, np.abs(borders[:-1] - number).min(initial=1.0))
    return order[int((borders <= number).sum())], margin


SETTINGS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.7]),
        "top_k": st.integers(0, VOCAB),
        "top_p": st.sampled_from([0.05, 0.3, 0.5, 0.9, 0.95, 1.0]),
        "min_p": st.sampled_from([0.0, 0.0, 0.05, 0.3, 1.0]),
        "seed": st.integers(0, 2**32 - 1),
        "output_index": st.integers(0, 2**20),
    }
)


@settings(max_examples=300, deadline=None)
@given(row=SETTINGS, noise=st.integers(0, 2**31), coarse=st.booleans())
def test_token_equals_the_oracle(row, noise, coarse):
    logits = np.random.default_rng(noise).normal(size=VOCAB).astype(np.float32) * 3
    if coarse:  # many equal logits
        logits = np.round(logits)
    token, margin = oracle(logits.tolist(), row)
    assume(margin > 1e-5)
    assert draw(logits[None], row).token_ids_B.item() == token


@settings(max_examples=50, deadline=None)
@given(rows=st.lists(SETTINGS, min_size=2, max_size=12), noise=st.integers(0, 2**31))
@pytest.mark.parametrize("vocab", [VOCAB, 1003])
def test_a_row_is_bitwise_the_same_alone_and_in_any_batch(rows, noise, vocab):
    generator = torch.Generator().manual_seed(noise)
    logits = torch.randn(len(rows), vocab, generator=generator) * 4
    together = draw(logits, *rows)
    reverse = draw(logits.flip(0), *rows[::-1])
    for index, row in enumerate(rows):
        alone = draw(logits[index : index + 1], row)
        for whole, single, mirrored in zip(together, alone, reverse, strict=True):
            assert torch.equal(whole[index], single[0])
            assert torch.equal(whole[index], mirrored[len(rows) - 1 - index])


@settings(max_examples=100, deadline=None)
@given(
    noise=st.integers(0, 2**31),
    top_k=st.integers(0, 20),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
)
def test_the_kept_ranks_are_the_smallest_set_that_satisfies_every_rule(noise, top_k, top_p, min_p):
    generator = torch.Generator().manual_seed(noise)
    probs = (torch.randn(1, 20, generator=generator) * 2).softmax(1).sort(1, True).values
    kept = keep_mask(
        probs,
        top_k_B=torch.tensor([top_k]),
        top_p_B=torch.tensor([top_p]),
        min_p_B=torch.tensor([min_p]),
    )[0]
    number = int(kept.sum())
    assert number >= 1
    assert bool(kept[:number].all())  # a prefix
    p = probs[0].double()
    in_top_k = p[: top_k or 20]
    share = in_top_k / in_top_k.sum()
    if number > 1:
        assert number <= len(in_top_k)
        assert share[: number - 1].sum() < top_p + 1e-5  # without the last one: too little mass
        assert p[number - 1] >= min_p * p[0] * (1 - 1e-5)
    if number < len(in_top_k):  # one more would not be allowed
        enough = share[:number].sum() >= top_p - 1e-5
        assert enough or p[number] < min_p * p[0] * (1 + 1e-5)


def test_draws_follow_the_distribution():
    """Chi-square over 40,000 draws of one request; the bound is the 99.9% quantile of 7."""
    logits = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5])
    num_draws = 40_000
    rows = [
        {"seed": request_seed(7), "output_index": i, "temperature": 1.3} for i in range(num_draws)
    ]
    found = draw(logits.expand(num_draws, -1), *rows).token_ids_B.bincount(minlength=8)
    expected = (logits / 1.3).softmax(0) * num_draws
    chi_square = ((found - expected) ** 2 / expected).sum().item()
    assert chi_square < 24.3


def test_draws_of_different_requests_are_independent():
    """The joint histogram of two choices' draws: chi-square, 99.9% quantile of 15."""
    num_draws = 20_000
    logits = torch.zeros(num_draws, 4)
    first, second = (
        draw(logits, *({"seed": request_seed(7, c), "output_index": i} for i in range(num_draws)))
        for c in (0, 1)
    )
    pairs = (first.token_ids_B * 4 + second.token_ids_B).bincount(minlength=16)
    chi_square = ((pairs - num_draws / 16) ** 2 / (num_draws / 16)).sum().item()
    assert chi_square < 37.7


def test_greedy_takes_the_lower_id_whatever_else_is_set():
    logits = [[1.0, 3.0, 3.0, 0.0], [0.5] * 4]
    rows = [{"temperature": 0.0, "top_p": 0.1}, {"temperature": 0.0, "top_k": 3, "min_p": 0.5}]
    assert draw(logits, *rows).token_ids_B.tolist() == [1, 0]
    assert sample_greedy(torch.tensor(logits)).token_ids_B.tolist() == [1, 0]


def test_top_k_of_one_is_the_lower_id_of_a_tie():
    for index in range(50):
        assert draw([[3.0, 3.0, 1.0]], {"top_k": 1, "output_index": index}).token_ids_B.item() == 0


def test_tiny_temperature_is_greedy_and_not_nan():
    assert draw([[100.0, 99.0, -50.0]], {"temperature": 1e-30}).token_ids_B.item() == 0


def test_greedy_variant_reports_what_the_full_one_reports():
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(0))
    lean = sample_greedy(logits)
    full = draw(logits, *[{"temperature": 0.0}] * 3)
    assert torch.equal(lean.token_ids_B, full.token_ids_B)
    assert torch.equal(lean.logprobs_B, full.logprobs_B)
    assert lean.top_ids_BK.shape == (3, 0)


def test_logprobs_are_of_the_raw_distribution():
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(1))
    state = SamplingState.allocate(1, VOCAB)
    state.load_row(0, [1, 2], [3], {4: 50.0})
    row = {"temperature": 0.5, "repetition": 2.0, "presence": 1.0, "frequency": 1.0, "top_p": 0.9}
    out = draw(logits, row, state=state)
    expected = logits[0].double().log_softmax(0)
    assert out.token_ids_B.item() == 4
    assert math.isclose(out.logprobs_B.item(), expected[4], abs_tol=1e-5)
    assert out.top_ids_BK.shape == (1, 20)
    assert torch.allclose(out.top_logprobs_BK[0].double(), expected[out.top_ids_BK[0]], atol=1e-5)


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.integers(-3, 3), min_size=1, max_size=60), wanted=st.integers(1, 20))
def test_top_ids_are_ordered_by_value_then_id(values, wanted):
    wanted = min(wanted, len(values))
    expected = sorted(range(len(values)), key=lambda i: (-values[i], i))[:wanted]
    assert top_ids(torch.tensor([values], dtype=torch.float32), wanted)[0].tolist() == expected


def test_repetition_penalty_counts_prompt_and_output():
    state = SamplingState.allocate(1, 4)
    state.load_row(0, [0], [1])
    row = {"temperature": 0.0, "repetition": 4.0}
    assert draw([[3.0, 3.0, 1.0, -1.0]], row, state=state).token_ids_B.item() == 2
    state.load_row(0, [0])
    assert draw([[-1.0, -3.0, -3.0, -3.5]], row, state=state).token_ids_B.item() == 1


def test_presence_and_frequency_count_output_only():
    state = SamplingState.allocate(1, 3)
    state.load_row(0, [0], [1, 1, 2])
    logits = [[0.0, 2.5, 1.5]]
    assert draw(logits, {"temperature": 0.0, "presence": 1.0}, state=state).token_ids_B.item() == 1
    state.load_row(0, [0], [1, 1, 2])
    assert draw(logits, {"temperature": 0.0, "frequency": 1.0}, state=state).token_ids_B.item() == 1
    state.load_row(0, [0], [1, 1, 2])
    assert draw(logits, {"temperature": 0.0, "frequency": 2.0}, state=state).token_ids_B.item() == 0


def test_a_drawn_token_is_counted_in_its_slot_only():
    state = SamplingState.allocate(4, 3)
    for _ in range(2):
        draw(
            [[0.0, 9.0, 0.0], [9.0, 0.0, 0.0]],
            *[{"temperature": 0.0}] * 2,
            state=state,
            slots=[3, 1],
        )
    assert state.output_counts_SV.tolist() == [[0, 0, 0], [2, 0, 0], [0, 0, 0], [0, 2, 0]]


def test_loading_a_row_forgets_the_request_before():
    state = SamplingState.allocate(2, 5)
    state.load_row(1, [0, 1], [2, 2], {3: 1.5})
    state.load_row(1, [4])
    assert state.prompt_seen_SV[1].tolist() == [False] * 4 + [True]
    assert state.output_counts_SV[1].tolist() == [0] * 5
    assert state.logit_bias_SV[1].tolist() == [0.0] * 5


def test_logit_bias_can_force_and_forbid():
    state = SamplingState.allocate(2, 4)
    state.load_row(0, [], [], {2: 100.0})
    state.load_row(1, [], [], {0: -100.0})
    out = draw([[5.0, 0.0, 0.0, 0.0]] * 2, *[{"temperature": 0.0}] * 2, state=state)
    assert out.token_ids_B.tolist() == [2, 1]


def test_stop_ids_are_banned_until_min_tokens():
    logits = [[9.0, 8.0, 1.0, 0.0]] * 3
    rows = [{"temperature": 0.0, "min_tokens": 3, "output_index": i} for i in (2, 3, 2)]
    stop_ids = [(0, 1), (0, 1), (1,)]
    assert draw(logits, *rows, stop_ids=stop_ids).token_ids_B.tolist() == [2, 0, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_is_flagged_and_harms_no_other(bad):
    logits = torch.randn(3, VOCAB, generator=torch.Generator().manual_seed(2))
    row = {"seed": 5, "top_p": 0.9}
    clean = draw(logits, row, row, row)
    logits[1, 7] = bad
    out = draw(logits, row, row, row)
    assert out.is_finite_B.tolist() == [True, False, True]
    assert sample_greedy(logits).is_finite_B.tolist() == [True, False, True]
    assert 0 <= out.token_ids_B[1] < VOCAB
    for before, after in zip(clean, out, strict=True):
        assert torch.equal(before[[0, 2]], after[[0, 2]])


def test_a_row_of_nan_only_still_yields_a_legal_id():
    out = draw(torch.full((1, VOCAB), float("nan")), {"top_k": 5})
    assert 0 <= out.token_ids_B.item() < VOCAB
    assert int(out.top_ids_BK.max()) < VOCAB


def test_bfloat16_logits_are_computed_in_float32():
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(3)).bfloat16()
    wide = draw(logits.float(), {"seed": 1}, {"seed": 2})
    state = SamplingState.allocate(2, VOCAB)
    narrow = sample(logits, make_inputs({"seed": 1}, {"seed": 2}), state)
    assert all(torch.equal(a, b) for a, b in zip(wide, narrow, strict=True))


class Step(torch.nn.Module):
    def forward(self, logits, inputs, state):
        return sample(logits, SamplingInputs(*inputs), SamplingState(*state))


@pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")  # torch copies its own specs
def test_sampling_exports_with_the_counts_as_its_only_mutation():
    logits = torch.randn(4, VOCAB, generator=torch.Generator().manual_seed(4))
    inputs = make_inputs(*({"seed": i, "top_p": 0.8, "top_k": 10} for i in range(4)))
    example = SamplingState.allocate(5, VOCAB)
    program = torch.export.export(Step(), (logits, tuple(inputs), tuple(example)), strict=False)
    functional = program.run_decompositions({})
    assert list(functional.graph_signature.user_inputs_to_mutate.values()) == ["state_1"]
    states = [SamplingState.allocate(5, VOCAB) for _ in range(2)]
    eager = sample(logits, inputs, states[0])
    exported = program.module()(logits, tuple(inputs), tuple(states[1]))
    for a, b in zip(eager, exported, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(states[0].output_counts_SV, states[1].output_counts_SV)
    assert int(states[1].output_counts_SV.sum()) == 4
