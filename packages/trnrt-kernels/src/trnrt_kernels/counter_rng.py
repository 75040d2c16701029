"""Philox4x32-10: random words that are a pure function of a key and a counter.

The token at output index i of a request draws from word 0 of counter i under the request's key, so
it is the same alone or in any batch, after preemption and on every backend. Words are 32 bits;
they travel in Python ints or int64 tensors, and no intermediate product exceeds 48 bits.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

    Word = TypeVar("Word", int, Tensor)
else:
    Word = TypeVar("Word")

_ROUNDS = 10
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_WORD = 0xFFFFFFFF
_HALF = 0xFFFF

# Separates the mixing of seeds from every stream a request can draw from.
_SEED_MIXING_KEY = (0x74726E72, 0x73656564)


def philox(
    counter: tuple[Word, Word, Word, Word], key: tuple[Word, Word]
) -> tuple[Word, Word, Word, Word]:
    """Return the four random words of a counter under a key; all are 32-bit values."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3


def _multiply(word: Word, constant: int) -> tuple[Word, Word]:
    """The high and low word of a 64-bit product, by halves of the first factor."""
    from_low = (word & _HALF) * constant
    from_high = (word >> 16) * constant
    high = (from_high + (from_low >> 16)) >> 16
    low = (((from_high & _HALF) << 16) + from_low) & _WORD
    return high, low


def request_seed(seed: int, choice_index: int = 0) -> int:
    """Mix a client's seed (up to 64 bits) and the position of a choice into a 32-bit key."""
    words = (seed & _WORD, (seed >> 32) & _WORD, choice_index & _WORD, 0)
    return philox(words, _SEED_MIXING_KEY)[0]


def uniform(seed_B: Tensor, index_B: Tensor) -> Tensor:
    """One float32 in [0, 1) per row, on the grid of 2**-24.

    Args:
        seed_B: keys from `request_seed`, int64.
        index_B: absolute output index, int64.
    """
    zero_B = index_B & 0
    word_B = philox((index_B & _WORD, zero_B, zero_B, zero_B), (seed_B & _WORD, zero_B))[0]
    return (word_B >> 8).float() * 2.0**-24
