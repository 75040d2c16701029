"""Two caches have one name exactly when their bytes may be exchanged."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.tiny_checkpoint import make_tiny_checkpoint, tiny_config
from trnrt_kernels.errors import CheckpointError
from trnrt_kernels.models.checkpoint import open_checkpoint
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.identity import cache_id, weights_id
from trnrt_kernels.models.glm5_next.kinds import FfnKind, IndexerKind, LayerKind
from trnrt_kernels.serving import ServingShape

CONFIG = Glm5NextConfig.from_dict(tiny_config())
SHAPE = ServingShape(
    backend="cpu",
    dtype="bfloat16",
    numeric_mode="strict",
    max_num_seqs=4,
    max_model_len=4096,
    max_num_batched_tokens=512,
    page_size=64,
)
SETTINGS = {"weights_id": "ab" * 32, "shape": SHAPE, "row_tile": 4}
IRRELEVANT = {
    *("max_position_embeddings", "num_nextn_predict_layers", "pad_token_id", "eos_token_ids"),
    "dtype",
}
DIMS = [field.name for field in dataclasses.fields(CONFIG) if field.name not in IRRELEVANT]
OTHER_LAYERS = {
    "layer_types": (LayerKind.DSA, LayerKind.KDA) * 2,
    "mlp_layer_types": (FfnKind.SPARSE,) * 4,
    "indexer_types": (IndexerKind.SHARED, *(IndexerKind.FULL,) * 3),
    "norm_topk_prob": False,
}


def changed(name: str) -> Glm5NextConfig:
    """The config with one field changed, whether or not such a model makes sense."""
    copy = dataclasses.replace(CONFIG)
    value = getattr(CONFIG, name)
    object.__setattr__(copy, name, OTHER_LAYERS[name] if name in OTHER_LAYERS else value * 2)
    return copy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


@pytest.mark.parametrize("name", DIMS)
def test_every_dimension_counts(name: str) -> None:
    assert cache_id(changed(name), **SETTINGS) != cache_id(CONFIG, **SETTINGS)


@pytest.mark.parametrize("name", sorted(IRRELEVANT))
def test_what_changes_no_cached_value_does_not_count(name: str) -> None:
    other = dataclasses.replace(CONFIG)
    object.__setattr__(other, name, "other")
    assert cache_id(other, **SETTINGS) == cache_id(CONFIG, **SETTINGS)


@pytest.mark.parametrize(
    "change",
    [
        {"weights_id": "cd" * 32},
        {"row_tile": 8},
        {"latent_dtype": "float8_e4m3fn"},
        {"format_version": 2},
        *(
            {"shape": dataclasses.replace(SHAPE, **fields)}
            for fields in (
                {"dtype": "float32"},
                {"numeric_mode": "fast"},
                {"page_size": 128},
                {"tp_size": 2},
                {"tp_size": 2, "cp_size": 2},
                {"lnc": 2},
            )
        ),
    ],
    ids=str,
)
def test_every_setting_counts(change: dict[str, object]) -> None:
    assert cache_id(CONFIG, **{**SETTINGS, **change}) != cache_id(CONFIG, **SETTINGS)


def test_rank_layouts_differ_from_each_other() -> None:
    shapes = [dataclasses.replace(SHAPE, tp_size=4, cp_size=cp) for cp in (1, 2, 4)]
    assert len({cache_id(CONFIG, **{**SETTINGS, "shape": shape}) for shape in shapes}) == 3


def test_limits_do_not_count() -> None:
    limits = {"max_num_seqs": 9, "max_model_len": 256, "max_num_batched_tokens": 64}
    other = dataclasses.replace(SHAPE, **limits)
    assert cache_id(CONFIG, **{**SETTINGS, "shape": other}) == cache_id(CONFIG, **SETTINGS)


def test_names_are_sha256_in_hex_and_stay_the_same(folder: Path) -> None:
    name = weights_id(open_checkpoint(folder))
    assert name == weights_id(open_checkpoint(folder))
    assert len(bytes.fromhex(name)) == len(bytes.fromhex(cache_id(CONFIG, **SETTINGS))) == 32


def test_files_and_order_of_the_same_tensors_do_not_count(folder: Path, tmp_path: Path) -> None:
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    save_file(tensors, tmp_path / "model.safetensors")
    one, shards = open_checkpoint(tmp_path), open_checkpoint(folder)
    reordered = dataclasses.replace(shards, entries=dict(reversed(shards.entries.items())))
    assert len(one.files) != len(shards.files)
    assert weights_id(one) == weights_id(shards) == weights_id(reordered)


def test_fine_tunes_of_equal_headers_differ(folder: Path, tmp_path: Path) -> None:
    """One bit in the middle of one tensor, and the header as it was."""
    tuned = shutil.copytree(folder, tmp_path / "tuned")
    entries = open_checkpoint(tuned).entries.values()
    for entry in (max(entries, key=lambda e: e.num_bytes), min(entries, key=lambda e: e.num_bytes)):
        before = weights_id(open_checkpoint(tuned))
        with entry.path.open("r+b") as file:
            file.seek(entry.offset + entry.num_bytes // 2)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))
        assert weights_id(open_checkpoint(tuned)) != before, entry.name


@pytest.mark.parametrize("field", ["name", "dtype", "shape"])
def test_headers_count(folder: Path, field: str) -> None:
    checkpoint = open_checkpoint(folder)
    name, entry = next(iter(checkpoint.entries.items()))
    values = {"name": name + "x", "dtype": "I8", "shape": (*entry.shape, 1)}
    other = dataclasses.replace(entry, **{field: values[field]})
    entries = {n: e for n, e in checkpoint.entries.items() if n != name} | {other.name: other}
    assert weights_id(dataclasses.replace(checkpoint, entries=entries)) != weights_id(checkpoint)


def test_a_file_that_shrank_is_named(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "cut")
    checkpoint = open_checkpoint(copy)
    checkpoint.files[0].write_bytes(b"")
    with pytest.raises(CheckpointError, match=rf"{checkpoint.files[0].name} is truncated"):
        weights_id(checkpoint)
