"""The graphs a serving shape needs, as keys: no tracing, no compiler, no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cache

from trnrt_kernels.contract import KernelSpec, Phase, Role, Scalar, WeightForm
from trnrt_kernels.manifest import Bucket, GraphKey
from trnrt_kernels.memory_plan import MemoryPlan, cache_dtypes
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.layers import SegmentKind, layer_plan
from trnrt_kernels.registry import KERNELS, get_spec
from trnrt_kernels.serving import MAX_EXPORTS, ServingShape
from trnrt_kernels.source_digest import source_digest

HEAD_ENDINGS = ("greedy", "sample")
SPEC_MODULE = "trnrt_kernels.common.op_specs"
SAMPLING_MODULE = "trnrt_kernels.sampling"

# Config fields that choose which segments run or how long they may run, not what one computes.
_NOT_DIMS = frozenset(
    {
        "num_hidden_layers",
        "max_position_embeddings",
        "num_nextn_predict_layers",
        "pad_token_id",
        "dtype",
    }
)


def required_graphs(
    config: Glm5NextConfig, shape: ServingShape, memory: MemoryPlan, *, row_tile: int
) -> Iterator[GraphKey]:
    """Yield the key of every graph that serving may run, each once.

    Args:
        memory: pages and slots; the caches are inputs of static shape.
        row_tile: what row counts of matrix products are padded to; a constant of the graphs.
    """
    dims = _dims(config, memory, row_tile)
    kinds = dict.fromkeys(segment.kind for segment in layer_plan(config))
    for phase in Phase:
        for kind in kinds:
            spec = get_spec(phase, kind.op_name)
            for bucket in _buckets(spec, shape):
                for segment in _segment_names(kind, phase):
                    yield GraphKey(
                        family=config.family,
                        segment=segment,
                        dims=dims,
                        bucket=bucket,
                        target=shape.backend,
                        numeric_mode=shape.numeric_mode,
                        dtype=shape.dtype,
                        cache_dtypes=_cache_dtypes(spec, shape),
                        weight_form=_weight_form(shape),
                        tp=shape.tp_size,
                        cp=shape.cp_size,
                        lnc=shape.lnc,
                        sources=_sources(kind, phase),
                    )


def kernels_hash() -> str:
    """Digest of the sources of every kernel and of sampling."""
    modules = [entry.ref_module for entry in KERNELS.values()]
    modules += [entry.nki_module for entry in KERNELS.values() if entry.nki_module]
    return source_digest([*modules, SPEC_MODULE, SAMPLING_MODULE])


def _dims(config: Glm5NextConfig, memory: MemoryPlan, row_tile: int) -> dict[str, Scalar]:
    dims: dict[str, Scalar] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name not in _NOT_DIMS and isinstance(value, int | float):
            dims[field.name] = value
    return dims | {
        "row_tile": row_tile,
        "page_size": memory.page_size,
        "num_pages": memory.num_pages,
        "num_slots": memory.num_slots,
        "num_bundle_slots": memory.num_bundle_slots,
    }


def _buckets(spec: KernelSpec, shape: ServingShape) -> Iterator[Bucket]:
    """Sizes of a segment; the context matters only to one that reads a block table."""
    reads_pages = any(name.startswith("block_table") for name in spec.names(Role.INPUT))
    is_decode = spec.phase is Phase.DECODE
    for rows in shape.decode_buckets if is_decode else shape.prefill_buckets:
        for context in shape.context_buckets if reads_pages else (0,):
            yield Bucket(phase=spec.phase.value, rows=rows, context=context)


def _segment_names(kind: SegmentKind, phase: Phase) -> tuple[str, ...]:
    if kind is SegmentKind.HEAD:
        return tuple(f"{kind}+{ending}" for ending in HEAD_ENDINGS)
    if kind is SegmentKind.KDA and phase is Phase.PREFILL:
        return (kind.value, f"{kind}+{MAX_EXPORTS}exports")
    return (kind.value,)


def _cache_dtypes(spec: KernelSpec, shape: ServingShape) -> dict[str, str]:
    dtypes = cache_dtypes(shape.dtype)
    return {name: dtypes[name] for name in spec.names(Role.CACHE)}


def _weight_form(shape: ServingShape) -> str:
    form = WeightForm.CODES if shape.backend == "trn2" else WeightForm.TENSOR
    return form.value


@cache
def _sources(kind: SegmentKind, phase: Phase) -> str:
    entry = KERNELS[phase, kind.op_name]
    modules = [entry.ref_module, SPEC_MODULE]
    if entry.nki_module:
        modules.append(entry.nki_module)
    if kind is SegmentKind.HEAD:
        modules.append(SAMPLING_MODULE)
    return source_digest(modules)
