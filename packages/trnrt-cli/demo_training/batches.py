"""Encodes dialogues and packs ones of similar length into batches of a fixed token budget."""

import random
from collections.abc import Iterator
from itertools import islice

import torch
from tokenizers import Tokenizer
from torch import Tensor

from demo_training.dialogue import stream
from demo_training.exclusions import Exclusions
from demo_training.linear_attention import CHUNK
from demo_training.render import MODEL_DIR, ChatFormat, encode_sample
from demo_training.shape import added_token_id
from demo_training.tokenizer import PAD_TOKEN

POOL_SIZE = 512
MAX_TOKENS = 2048

Encoded = tuple[list[int], list[float]]


def batches(seed: int, budget: int, *, far_share: float = 0.0) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (ids, loss weights), both [B, T + 1]: inputs are the first T, labels the last T.

    B * T is at most `budget` unless one dialogue alone is longer; T is a multiple of 16.
    """
    rng = random.Random(seed)
    pool: list[Encoded] = []
    source = _encoded(seed, far_share)
    while True:
        if len(pool) < POOL_SIZE // 2:
            pool = sorted(pool + list(islice(source, POOL_SIZE)), key=lambda item: len(item[0]))
        start = rng.randrange(len(pool))
        end = start + 1
        while end < len(pool) and (end + 1 - start) * _padded(pool[end]) <= budget:
            end += 1
        # A start near the long end gives a thin batch; fill it from below.
        while start > 0 and (end - start + 1) * _padded(pool[end - 1]) <= budget:
            start -= 1
        yield _stack(pool[start:end])
        del pool[start:end]


def _encoded(seed: int, far_share: float) -> Iterator[Encoded]:
    chat = ChatFormat()
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    for sample in stream(seed, Exclusions.load(), far_share=far_share):
        ids, weights = encode_sample(sample, chat, tokenizer)
        if len(ids) <= MAX_TOKENS:
            yield ids, weights


def _padded(item: Encoded) -> int:
    return -(-(len(item[0]) - 1) // CHUNK) * CHUNK


def _stack(items: list[Encoded]) -> tuple[Tensor, Tensor]:
    length = max(_padded(item) for item in items) + 1
    ids = torch.full((len(items), length), added_token_id(PAD_TOKEN))
    weights = torch.zeros(len(items), length)
    for row, (tokens, token_weights) in enumerate(items):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        weights[row, : len(tokens)] = torch.tensor(token_weights)
    return ids, weights
