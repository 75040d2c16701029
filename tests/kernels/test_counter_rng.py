"""Philox gives the published words, in Python ints and in tensors alike."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trnrt_kernels.counter_rng import philox, request_seed, uniform

WORD = 0xFFFFFFFF

# Known-answer vectors of the authors' Random123 distribution (philox4x32, 10 rounds).
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((WORD,) * 4, (WORD,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_known_answers(counter, key, words):
    assert philox(counter, key) == words


@given(st.lists(st.integers(0, WORD), min_size=6, max_size=6))
def test_tensors_give_the_words_of_ints(values):
    counter, key = tuple(values[:4]), tuple(values[4:])
    tensors = philox(
        tuple(torch.tensor([v]) for v in counter), tuple(torch.tensor([v]) for v in key)
    )
    assert tuple(t.item() for t in tensors) == philox(counter, key)


@given(st.integers(0, WORD), st.integers(0, 2**40))
def test_uniform_lies_in_the_half_open_interval_and_ignores_the_other_rows(seed, index):
    alone = uniform(torch.tensor([seed]), torch.tensor([index]))
    among = uniform(torch.tensor([1, seed, 2]), torch.tensor([0, index, 5]))
    assert 0.0 <= alone.item() < 1.0
    assert alone[0] == among[1]


def test_choices_and_neighbouring_seeds_have_different_keys():
    keys = {request_seed(seed, choice) for seed in range(50) for choice in range(50)}
    assert len(keys) == 2500


def test_all_64_bits_of_a_seed_matter():
    assert request_seed(1) != request_seed(1 + 2**32)
    assert 0 <= request_seed(2**64 - 1, 7) <= WORD
