"""What a model folder's `generation_config.json` asks for where a client is silent."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trnrt_engine.api import SamplingParams
from trnrt_engine.errors import ModelRefused
from trnrt_engine.intake import check_sampling

FILE_NAME = "generation_config.json"
_FIELDS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


@dataclass(frozen=True, slots=True)
class GenerationConfig:
    """Defaults of a model.

    Fields:
        eos_token_ids: end a request unless it ignores them.
    """

    eos_token_ids: tuple[int, ...]
    sampling: SamplingParams


def read_generation_config(
    model_dir: Path, *, eos_token_ids: tuple[int, ...], vocab_size: int
) -> GenerationConfig:
    """Read the file; a missing file, or a value it leaves out, is the default.

    Args:
        eos_token_ids: of `config.json`, used where the file names none.

    Raises:
        ModelRefused: the file is no JSON object or holds a value that cannot be served.
    """
    path = model_dir / FILE_NAME
    raw = _read_object(path) if path.exists() else {}
    if raw.get("eos_token_id") is None:
        _check_config_eos(model_dir, eos_token_ids, vocab_size)
    stated = {field: raw[name] for name, field in _FIELDS.items() if raw.get(name) is not None}
    try:
        sampling = msgspec.convert(stated, SamplingParams)
        check_sampling(sampling, vocab_size=vocab_size)
        eos_ids = _eos_ids(raw.get("eos_token_id"), vocab_size)
    except (msgspec.ValidationError, ValueError) as error:
        raise ModelRefused(f"{path}: {error}") from error
    return GenerationConfig(eos_ids or eos_token_ids, sampling)


def _read_object(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelRefused(f"{path} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ModelRefused(f"{path} holds {type(raw).__name__}, must be a JSON object")
    return raw


def _check_config_eos(model_dir: Path, eos_token_ids: tuple[int, ...], vocab_size: int) -> None:
    """Hold the ids of `config.json` against the vocabulary; a wrong one would fail every step."""
    try:
        _eos_ids(list(eos_token_ids), vocab_size)
    except (msgspec.ValidationError, ValueError) as error:
        raise ModelRefused(f"{model_dir / 'config.json'}: {error}") from error


def _eos_ids(value: object, vocab_size: int) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = msgspec.convert(value if isinstance(value, list) else [value], tuple[int, ...])
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise ValueError(f"eos_token_id {token_id} is outside the vocabulary of {vocab_size}")
    return ids
