"""A bad setting stops the start and names itself."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from trnrt_engine.config import EngineConfig
from trnrt_kernels.serving import OPTIONS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("backend", "gpu"),
        ("dtype", "float64"),
        ("numeric_mode", "exact"),
        ("graphs", "maybe"),
        ("max_num_seqs", 0),
        ("max_model_len", 0),
        ("max_num_batched_tokens", 63),
        ("cache_gib", 0.0),
        ("prefix_cache", "maybe"),
        ("cache_host_gib", -1.0),
        ("cache_disk_gib", 0.0),
        ("cache_host_dir", "/somewhere"),
        ("max_waiting", -1),
    ],
)
def test_bad_value_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field} is"):
        EngineConfig(model_dir=Path("model"), **{field: value})


def test_every_serving_option_is_a_field_with_the_same_default() -> None:
    fields = {field.name: field.default for field in dataclasses.fields(EngineConfig)}
    for name, option in OPTIONS.items():
        assert fields[name] == option.default
