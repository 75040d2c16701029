"""A small real tokenizer with the released control tokens, written as a model folder's file."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

CONTROL_TOKENS = (
    *("<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>"),
    *("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    *("<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>"),
    *("<|begin_of_audio|>", "<|end_of_audio|>"),
    *("<|begin_of_transcription|>", "<|end_of_transcription|>"),
    *("<|code_prefix|>", "<|code_middle|>", "<|code_suffix|>"),
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    *("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "/nothink"),
    *("<|begin_of_box|>", "<|end_of_box|>", "<|image|>", "<|video|>"),
)
_NOT_SPECIAL = frozenset(CONTROL_TOKENS[21:32])
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SENTENCES = (
    "The quick brown fox jumps over the lazy dog. Ein Hund läuft durch Bonn und trinkt Kaffee.",
    'def add(a, b):\n    """Return the sum."""\n    return a + b\n\nprint(add(1, 23456))',
    '{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}} 天气很好。我们去公园吧。',
    "You may call one or more functions to assist with the user query. <tools></tools> </a> <b>",
)


def write_tokenizer(
    folder: Path, *, pieces: Iterable[bytes] = (), controls: Iterable[str] = CONTROL_TOKENS
) -> Path:
    """Write `tokenizer.json`; `pieces` become tokens of their own, reached by id only."""
    raw = json.loads(_trained())
    add_pieces(raw, pieces)
    start = 1 + max(raw["model"]["vocab"].values())
    raw["added_tokens"] = [
        {
            "id": start + index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": token not in _NOT_SPECIAL,
        }
        for index, token in enumerate(controls)
    ]
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(raw), encoding="utf-8")
    return path


def add_pieces(raw: dict, pieces: Iterable[bytes]) -> None:
    """Add each byte string to a parsed `tokenizer.json` as one token."""
    vocabulary = raw["model"]["vocab"]
    largest = max([*vocabulary.values(), *(t["id"] for t in raw["added_tokens"])])
    for piece in pieces:
        token = "".join(_byte_alphabet()[byte] for byte in piece)
        if token not in vocabulary:
            largest += 1
            vocabulary[token] = largest


@cache
def _trained() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_SENTENCES, trainer)
    return tokenizer.to_str()


@cache
def _byte_alphabet() -> list[str]:
    """The character of each byte: itself where visible, the others in order from 256."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    stand_in = (character for character in alphabet if ord(character) >= 0x100)
    return [chr(byte) if chr(byte) in alphabet else next(stand_in) for byte in range(0x100)]
