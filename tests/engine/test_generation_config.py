"""Sampling defaults and end tokens of a model folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trnrt_engine.api import SamplingParams
from trnrt_engine.errors import ModelRefused
from trnrt_engine.generation_config import GenerationConfig, read_generation_config


def read(folder: Path, content: object) -> GenerationConfig:
    if content is not None:
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / "generation_config.json").write_text(text)
    return read_generation_config(folder, eos_token_ids=(3,), vocab_size=100)


def test_stated_values_are_taken(tmp_path: Path) -> None:
    stated = {
        "eos_token_id": [5, 6],
        "temperature": 0.7,
        "top_p": 0.95,
        "top_k": 40,
        "repetition_penalty": 1.1,
        "max_new_tokens": 64,
        "do_sample": True,
        "transformers_version": "5.24.0",
    }
    found = read(tmp_path, stated)
    assert found.eos_token_ids == (5, 6)
    assert found.sampling == SamplingParams(
        temperature=0.7, top_p=0.95, top_k=40, repetition_penalty=1.1, max_tokens=64
    )


def test_missing_file_leaves_the_defaults(tmp_path: Path) -> None:
    assert read(tmp_path, None) == GenerationConfig((3,), SamplingParams())


def test_single_end_token_is_one_of_a_list(tmp_path: Path) -> None:
    assert read(tmp_path, {"eos_token_id": 7}).eos_token_ids == (7,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ([1], "holds list"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_p": 0.0}, "top_p is 0"),
        ({"eos_token_id": 100}, "eos_token_id 100 is outside the vocabulary of 100"),
        ({"eos_token_id": ["x"]}, "int"),
    ],
)
def test_value_that_cannot_be_served_names_the_file(
    tmp_path: Path, content: object, message: str
) -> None:
    with pytest.raises(ModelRefused, match=rf"generation_config\.json.*{message}"):
        read(tmp_path, content)


@pytest.mark.parametrize("eos_id", [100, -1, "</s>"])
def test_end_token_of_the_config_is_checked_where_it_is_used(
    tmp_path: Path, eos_id: object
) -> None:
    with pytest.raises(ModelRefused, match=r"config\.json: "):
        read_generation_config(tmp_path, eos_token_ids=(eos_id,), vocab_size=100)  # type: ignore[arg-type]
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 5}')
    found = read_generation_config(tmp_path, eos_token_ids=(eos_id,), vocab_size=100)  # type: ignore[arg-type]
    assert found.eos_token_ids == (5,)
