"""A model folder becomes a serving engine, or a plain sentence why not."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest
import torch

from support.tiny_checkpoint import EOS_IDS, make_tiny_checkpoint
from trnrt_engine.api import EngineRequest, FinishReason, SamplingParams
from trnrt_engine.config import EngineConfig
from trnrt_engine.engine import Engine
from trnrt_engine.errors import GraphMissing, ModelRefused
from trnrt_engine.loading import load_core
from trnrt_kernels.errors import BackendUnavailable, CheckpointError, OptionError, UnsupportedConfig
from trnrt_kernels.memory_plan import cache_bytes
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(
        tmp_path_factory.mktemp("model") / "tiny", max_position_embeddings=512
    )


def config_of(folder: Path, **fields) -> EngineConfig:
    return EngineConfig(model_dir=folder, **{"graphs": "eager", **fields})


def test_folder_is_served_with_its_own_defaults(folder: Path) -> None:
    said: list[str] = []

    async def main() -> None:
        engine = await Engine.start(config_of(folder, max_num_seqs=3), progress=said.append)
        try:
            info = engine.info
            assert (info.model, info.backend, info.vocab_size) == ("tiny", "cpu", 1280)
            assert (info.max_model_len, info.max_num_seqs) == (512, 3)
            assert info.eos_token_ids == EOS_IDS
            assert info.default_sampling == SamplingParams(temperature=1.0, top_p=0.95)
            request = EngineRequest(
                request_id="a",
                token_ids=[1, 2, 3],
                sampling=SamplingParams(max_tokens=4, ignore_eos=True, num_logprobs=2),
            )
            deltas = [delta async for delta in engine.add(request)]
            assert [len(delta.token_ids) for delta in deltas] == [1, 1, 1, 1]
            assert deltas[-1].finish_reason is FinishReason.LENGTH
            assert all(len(delta.logprobs[0].top) == 2 for delta in deltas)
            stats = engine.stats()
            assert stats.free_pages == stats.total_pages == 3 * 8
        finally:
            await engine.close()

    asyncio.run(main())
    assert said[0].startswith("reading")
    assert "loading weights: 100%" in said
    assert not [t for t in threading.enumerate() if t.name == "trnrt-engine-loop"]


@pytest.mark.parametrize(("dtype", "expected"), [("auto", "bfloat16"), ("float32", "float32")])
def test_dtype_is_the_checkpoints_unless_told(folder: Path, dtype: str, expected: str) -> None:
    core = load_core(config_of(folder, dtype=dtype, max_num_seqs=1))
    latents = core.runner.caches.layers[1]["latents"]
    assert latents.dtype == getattr(torch, expected)


def test_cache_budget_bounds_the_pages(folder: Path) -> None:
    assert load_core(config_of(folder)).cache.num_pages == 12 * 8
    cost = cache_bytes(Glm5NextConfig.from_dir(folder), page_size=64, dtype="bfloat16")
    paged = (24 + 4) * cost.slot + (12 + 20) * cost.page + cost.page // 2
    budget = paged + paged // 2 // cost.bundle * cost.bundle  # a third is for saved states
    assert load_core(config_of(folder, cache_gib=budget / 2**30)).cache.num_pages == 20


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"max_model_len": 513}, OptionError, "max_model_len is 513.*window is 512"),
        ({"cache_gib": 0.0001}, OptionError, "does not hold one sequence"),
        ({"graphs": "compiled"}, GraphMissing, "compiled graphs are missing"),
        ({"backend": "trn2"}, BackendUnavailable, "trn2"),
    ],
    ids=["window", "cache", "graphs", "backend"],
)
def test_setting_that_cannot_be_served_is_refused(
    folder: Path, fields: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        load_core(config_of(folder, **fields))


def test_folder_without_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedConfig, match=r"cannot read .*config\.json"):
        load_core(config_of(tmp_path))


def test_folder_without_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(CheckpointError):
        load_core(config_of(tmp_path))


def test_bad_generation_config_is_refused_before_weights_load(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    (tmp_path / "generation_config.json").write_text(json.dumps({"top_p": 7}))
    with pytest.raises(ModelRefused, match="top_p is 7"):
        load_core(config_of(tmp_path))
