"""Copying in its purest form: random tokens, of which pieces come back.

Nothing but attention to what stood before can predict a piece that returns, at any distance.
Dialogues ask for the same skill, but so rarely that a small model learns to guess instead.
"""

import random
from collections.abc import Iterator

import torch
from torch import Tensor

from demo_training.shape import added_token_id
from demo_training.tokenizer import ADDED_TOKENS

ALPHABETS = (40, 200, added_token_id(ADDED_TOKENS[0]))
PIECE_TOKENS = (3, 10)
MIN_PIECES = 3
RETURNS = 0.5


def drills(seed: int, budget: int, lengths: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (ids, loss weights), both [B, T + 1], with B * T = `budget` and T one of `lengths`.

    The weight is 1 inside a piece that returns, past its first token, and 0 elsewhere.
    """
    rng = random.Random(seed)
    while True:
        length = rng.choice(lengths)
        rows = [_row(rng, length + 1) for _ in range(budget // length)]
        ids, weights = zip(*rows, strict=True)
        yield torch.tensor(ids), torch.tensor(weights)


def _row(rng: random.Random, length: int) -> tuple[list[int], list[float]]:
    alphabet = rng.sample(range(ALPHABETS[-1]), rng.choice(ALPHABETS))
    pieces: list[list[int]] = []
    ids: list[int] = []
    weights: list[float] = []
    while len(ids) < length:
        if len(pieces) < MIN_PIECES or rng.random() >= RETURNS:
            piece = rng.choices(alphabet, k=rng.randint(*PIECE_TOKENS))
            pieces.append(piece)
            weights += [0.0] * len(piece)
        else:
            piece = rng.choice(pieces)
            weights += [0.0] + [1.0] * (len(piece) - 1)
        ids += piece
    return ids[:length], weights[:length]
