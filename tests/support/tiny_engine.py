"""Engine cores on a tiny random checkpoint, sharing one loaded model."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from support.tiny_checkpoint import make_tiny_checkpoint
from trnrt_engine.api import SamplingParams
from trnrt_engine.core import EngineCore
from trnrt_engine.generation_config import GenerationConfig
from trnrt_engine.loading import make_core
from trnrt_kernels.memory_plan import plan_memory
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.model import Model
from trnrt_kernels.models.glm5_next.weights import load_weights
from trnrt_kernels.numeric import NumericMode
from trnrt_kernels.serving import ServingShape

WINDOW = 512


def load_tiny_model(folder: Path, *, window: int = WINDOW, **text_changes: Any) -> Model:
    """Make a checkpoint and load it, float32 and strict; a short Sinkhorn keeps steps quick.

    Args:
        text_changes: replace keys of `TEXT_CONFIG`.
    """
    make_tiny_checkpoint(
        folder,
        fp8=False,
        dtype=torch.float32,
        num_shards=1,
        max_position_embeddings=window,
        hc_sinkhorn_iters=3,
        num_nextn_predict_layers=0,
        **text_changes,
    )
    config = Glm5NextConfig.from_dir(folder)
    return Model(config, load_weights(folder, config), numeric_mode=NumericMode.STRICT)


def tiny_core(
    model: Model,
    *,
    max_num_seqs: int = 4,
    prefill_ahead: int = 0,
    max_num_batched_tokens: int = 128,
    max_model_len: int | None = None,
    eos_token_ids: tuple[int, ...] = (),
    num_steps_ahead: int = 0,
    max_decode_stall_ms: int = 500,
    num_bundle_slots: int | None = None,
    page_size: int | None = None,
    num_pages: int | None = None,
    cache_id: bytes = bytes(32),
    clock: Callable[[], float] = time.monotonic,
    **tiers,
) -> EngineCore:
    """Put fresh caches and a scheduler around a model.

    Args:
        num_bundle_slots: None = no prefix cache.
        page_size, num_pages: None = what the window gives; scratch not counted.
        cache_id: of the model's numbers. tiers: `swap_bytes`, and stores below the device, as
            `LowerTiers` has them.
    """
    shape = ServingShape.resolve(
        window=model.config.max_position_embeddings,
        index_kpool=model.config.index_kpool,
        backend="cpu",
        dtype="float32",
        numeric_mode="strict",
        max_num_seqs=max_num_seqs,
        prefill_ahead=prefill_ahead,
        max_model_len=max_model_len,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    if page_size is not None:
        shape = dataclasses.replace(shape, page_size=page_size)
    memory = plan_memory(model.config, shape)
    if num_pages is not None:
        memory = dataclasses.replace(memory, num_pages=num_pages + memory.num_scratch)
    core = make_core(
        model,
        shape,
        memory,
        GenerationConfig(eos_token_ids, SamplingParams()),
        model_name="tiny",
        max_decode_stall_ms=max_decode_stall_ms,
        num_bundle_slots=num_bundle_slots,
        cache_id=cache_id,
        clock=clock,
        **tiers,
    )
    return dataclasses.replace(core, num_steps_ahead=num_steps_ahead)
