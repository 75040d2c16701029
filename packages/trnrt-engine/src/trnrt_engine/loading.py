"""From a model folder to an engine core: what is cheap to refuse is refused before weights load."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from trnrt_engine.__about__ import __version__
from trnrt_engine.api import EngineInfo
from trnrt_engine.batch import Buckets
from trnrt_engine.cache.manager import CacheManager
from trnrt_engine.cache.swap import SwapSettings
from trnrt_engine.cache.tiers import LowerTiers
from trnrt_engine.config import EngineConfig
from trnrt_engine.core import EngineCore
from trnrt_engine.device_bytes import CacheBytes
from trnrt_engine.generation_config import GenerationConfig, read_generation_config
from trnrt_engine.graphs import check_graphs
from trnrt_engine.intake import RequestLimits
from trnrt_engine.machine import free_memory_bytes
from trnrt_engine.metrics import EngineMetrics
from trnrt_engine.runner import Runner
from trnrt_engine.scheduler import Scheduler
from trnrt_engine.selftest import check_prefix_cache
from trnrt_engine.stall_budget import StallBudget
from trnrt_engine.step_times import StepTimes
from trnrt_engine.stores import open_stores
from trnrt_kernels.backend import get_backend
from trnrt_kernels.common.score_budget import INDEXER_BYTES
from trnrt_kernels.memory_plan import BUNDLE_SHARE, MemoryPlan, plan_memory, weight_bytes
from trnrt_kernels.models.checkpoint import open_checkpoint
from trnrt_kernels.models.glm5_next import identity
from trnrt_kernels.models.glm5_next.caches import CacheGeometry, Caches
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.model import Model
from trnrt_kernels.models.glm5_next.required_graphs import required_graphs
from trnrt_kernels.models.glm5_next.tensor_check import stored_dtype
from trnrt_kernels.models.glm5_next.weights import load_weights
from trnrt_kernels.numeric import NumericMode
from trnrt_kernels.sampling import SamplingState
from trnrt_kernels.serving import ServingShape, round_up

logger = logging.getLogger(__name__)

GIB = 2**30
SWAP_SHARE = 4  # of the caches' bytes one part; memory is taken when a sequence is swapped out

Progress = Callable[[str], None]


def load_core(config: EngineConfig, *, progress: Progress | None = None) -> EngineCore:
    """Load a model and put an engine core around it.

    Raises:
        TrnrtEngineError, TrnrtKernelsError, OSError: the folder or a setting cannot be served.
    """
    started_s = time.monotonic()
    report = progress or _ignore
    report("reading the model's configuration")
    model_config = Glm5NextConfig.from_dir(config.model_dir)
    generation = read_generation_config(
        config.model_dir,
        eos_token_ids=model_config.eos_token_ids,
        vocab_size=model_config.vocab_size,
    )
    shape = _resolve_shape(config, model_config)
    budget = _cache_budget(config, model_config, shape)
    is_caching = config.prefix_cache == "on"
    memory = plan_memory(
        model_config,
        shape,
        cache_budget_bytes=budget,
        bundle_share=BUNDLE_SHARE if is_caching else Fraction(0),
    )
    num_bundle_slots = memory.num_bundle_slots if is_caching else None
    weights = load_weights(
        config.model_dir, model_config, dtype=shape.dtype, progress=_percent_of(report)
    )
    report("preparing the model")
    model = Model(model_config, weights, numeric_mode=NumericMode(shape.numeric_mode))
    check_graphs(
        config.graphs, required_graphs(model_config, shape, memory, row_tile=model.row_tile)
    )
    stores = open_stores(config) if num_bundle_slots is not None else {}
    core = make_core(
        model,
        shape,
        memory,
        generation,
        model_name=config.model_dir.name,
        max_decode_stall_ms=config.max_decode_stall_ms,
        num_bundle_slots=num_bundle_slots,
        clock=time.monotonic,
        cache_id=_cache_id(config, model, shape),
        is_exact_cache=config.exact_cache == "on",
        swap_bytes=None if config.swap_host_gib is None else int(config.swap_host_gib * GIB),
        **stores,
    )
    if num_bundle_slots is not None:
        report("checking the prefix cache")
        try:
            check_prefix_cache(core, is_exact=shape.numeric_mode == NumericMode.STRICT)
        except BaseException:
            core.cache.close()
            raise
    logger.info(
        "engine loaded model=%s dtype=%s pages=%d bundle_slots=%d window=%d load_s=%.1f",
        *(config.model_dir.name, shape.dtype, core.cache.num_pages, num_bundle_slots or 0),
        shape.max_model_len,
        time.monotonic() - started_s,
    )
    return core


def make_core(
    model: Model,
    shape: ServingShape,
    memory: MemoryPlan,
    generation: GenerationConfig,
    *,
    model_name: str,
    max_decode_stall_ms: int,
    num_bundle_slots: int | None = None,
    cache_id: bytes = b"",
    clock: Callable[[], float] = time.monotonic,
    swap_bytes: int | None = None,
    is_exact_cache: bool = False,
    **tiers: Any,
) -> EngineCore:
    """Allocate caches for a model and put scheduler and runner around it.

    Args:
        num_bundle_slots: slots of the prefix cache; None = there is none.
        clock: seconds, monotonic; for deadlines, times to live and late loads.
        cache_id: name of what the caches hold, as `trnrt_kernels` gives it.
        swap_bytes: host memory for preempted sequences; None is `SWAP_SHARE` of the caches.
        is_exact_cache: what was generated is not reused by the session's next turn.
        tiers: stores below the device, the fields of `LowerTiers` beside `device`.
    """
    geometry = _geometry(memory, row_tile=model.row_tile, num_bundle_slots=num_bundle_slots or 0)
    runner = _make_runner(model, shape, geometry)
    device = CacheBytes(runner.caches, runner.sampling_state)
    if swap_bytes is None:
        swap_bytes = runner.caches.num_bytes // SWAP_SHARE
    cache = CacheManager(
        num_pages=geometry.num_pages - geometry.num_scratch,
        page_size=geometry.page_size,
        num_state_slots=geometry.num_state_slots - geometry.num_scratch,
        num_scratch=geometry.num_scratch,
        num_bundle_slots=num_bundle_slots,
        cache_id=cache_id,
        clock=clock,
        lower=LowerTiers(device=device, **tiers) if tiers else None,
        swap=SwapSettings(device=device, budget_bytes=swap_bytes),
        keeps_turns=not is_exact_cache,
    )
    metrics = EngineMetrics()
    return EngineCore(
        scheduler=_make_scheduler(
            shape, cache, metrics, max_decode_stall_ms=max_decode_stall_ms, clock=clock
        ),
        runner=runner,
        cache=cache,
        metrics=metrics,
        limits=RequestLimits(
            vocab_size=model.config.vocab_size,
            max_model_len=shape.max_model_len,
            num_pages=cache.num_pages,
            page_size=cache.page_size,
            eos_token_ids=generation.eos_token_ids,
        ),
        info=EngineInfo(
            model=model_name,
            max_model_len=shape.max_model_len,
            max_num_seqs=shape.max_num_seqs,
            vocab_size=model.config.vocab_size,
            eos_token_ids=generation.eos_token_ids,
            backend=shape.backend,
            version=__version__,
            default_sampling=generation.sampling,
        ),
    )


def _make_scheduler(
    shape: ServingShape,
    cache: CacheManager,
    metrics: EngineMetrics,
    *,
    max_decode_stall_ms: int,
    clock: Callable[[], float],
) -> Scheduler:
    return Scheduler(
        cache=cache,
        metrics=metrics,
        max_num_seqs=shape.max_num_seqs,
        prefill_ahead=shape.prefill_ahead,
        stall_budget=StallBudget(
            StepTimes(
                prefill_buckets=shape.prefill_buckets,
                decode_buckets=shape.decode_buckets,
                context_buckets=shape.context_buckets,
            ),
            budget_s=max_decode_stall_ms / 1e3,
            metrics=metrics,
        ),
        clock=clock,
    )


def _cache_id(config: EngineConfig, model: Model, shape: ServingShape) -> bytes:
    name = identity.cache_id(
        model.config,
        weights_id=identity.weights_id(open_checkpoint(config.model_dir)),
        shape=shape,
        row_tile=model.row_tile,
    )
    if config.exact_cache == "on":  # what others left may have answers in decode form before it
        name = hashlib.sha256(f"exact {name}".encode()).hexdigest()
    return bytes.fromhex(name)


def _geometry(memory: MemoryPlan, *, row_tile: int, num_bundle_slots: int) -> CacheGeometry:
    """Add the scratch rows with which decode pads a batch to the row tile."""
    num_scratch = round_up(memory.num_scratch, row_tile)
    num_added = num_scratch - memory.num_scratch
    return CacheGeometry(
        num_pages=memory.num_pages + num_added,
        page_size=memory.page_size,
        num_state_slots=memory.num_slots + num_added,
        num_scratch=num_scratch,
        num_bundle_slots=num_bundle_slots,
    )


def _make_runner(model: Model, shape: ServingShape, geometry: CacheGeometry) -> Runner:
    return Runner(
        model,
        Caches.allocate(model.config, geometry, dtype=model.weights.dtype),
        SamplingState.allocate(geometry.num_state_slots, model.config.vocab_size),
        buckets=Buckets(
            prefill_rows=shape.prefill_buckets,
            decode_rows=shape.decode_buckets,
            context_pages=tuple(tokens // shape.page_size for tokens in shape.context_buckets),
        ),
        num_slots=geometry.num_state_slots,
    )


def _resolve_shape(config: EngineConfig, model_config: Glm5NextConfig) -> ServingShape:
    dtype = config.dtype
    if dtype == "auto":
        dtype = stored_dtype(config.model_dir, model_config)
    return ServingShape.resolve(
        window=model_config.max_position_embeddings,
        index_kpool=model_config.index_kpool,
        backend=get_backend(config.backend).name,
        dtype=dtype,
        numeric_mode=config.numeric_mode,
        max_num_seqs=config.max_num_seqs,
        prefill_ahead=config.prefill_ahead,
        max_model_len=config.max_model_len,
        max_num_batched_tokens=config.max_num_batched_tokens,
    )


def _cache_budget(
    config: EngineConfig, model_config: Glm5NextConfig, shape: ServingShape
) -> int | None:
    """Return the bytes caches may take: what was asked for, else half of what will be free."""
    if config.cache_gib is not None:
        return int(config.cache_gib * GIB)
    free = free_memory_bytes()
    if free is None:
        return None
    taken = sum(weight_bytes(model_config, dtype=shape.dtype).values()) + INDEXER_BYTES
    return max(free - taken, 0) // 2


def _percent_of(report: Progress) -> Callable[[int, int], None]:
    """Report bytes loaded in steps of five percent, each once."""
    last = -1

    def on_bytes(done: int, total: int) -> None:
        nonlocal last
        percent = 100 * done // max(total, 1) // 5 * 5
        if percent != last:
            last = percent
            report(f"loading weights: {percent}%")

    return on_bytes


def _ignore(text: str) -> None:
    del text
