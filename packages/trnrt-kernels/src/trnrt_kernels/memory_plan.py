"""Bytes of everything one rank holds: weights, caches, scratch; and what a budget has room for.

Pure arithmetic on the config, the tensor inventory and the serving shape; no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from trnrt_kernels.common.fp8 import scale_shape
from trnrt_kernels.errors import OptionError
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.inventory import HeldTensor, Precision, inventory
from trnrt_kernels.models.glm5_next.kinds import IndexerKind
from trnrt_kernels.serving import ServingShape

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float8_e4m3fn": 1}
SCALE_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheBytes:
    """What the caches cost.

    Fields:
        latents_per_page, index_keys_per_page: all sparse-attention layers together.
        states_per_slot, conv_tails_per_slot, open_pools_per_slot: all layers together.
        sampling_per_slot: seen tokens, counts and bias of one request.
    """

    latents_per_page: int
    index_keys_per_page: int
    states_per_slot: int
    conv_tails_per_slot: int
    open_pools_per_slot: int
    sampling_per_slot: int

    @property
    def page(self) -> int:
        """Bytes of one page over all layers."""
        return self.latents_per_page + self.index_keys_per_page

    @property
    def slot(self) -> int:
        """Bytes of one sequence's fixed-size state over all layers."""
        return (
            self.states_per_slot
            + self.conv_tails_per_slot
            + self.open_pools_per_slot
            + self.sampling_per_slot
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """One rank's memory.

    Fields:
        weights: bytes in the form held, by component.
        cache: bytes a page and a slot.
        num_pages, num_slots: scratch included.
        num_scratch: pages, and slots, of padding rows.
    """

    weights: dict[str, int]
    cache: CacheBytes
    page_size: int
    num_pages: int
    num_slots: int
    num_scratch: int

    @property
    def rows(self) -> list[tuple[str, int]]:
        """(what, bytes) of everything, scratch apart from what requests can use."""
        pages, slots = self.num_pages - self.num_scratch, self.num_slots - self.num_scratch
        return [
            *((f"weights: {name}", size) for name, size in self.weights.items()),
            ("latents", pages * self.cache.latents_per_page),
            ("index keys", pages * self.cache.index_keys_per_page),
            ("kda states", slots * self.cache.states_per_slot),
            ("conv tails", slots * self.cache.conv_tails_per_slot),
            ("open pools", slots * self.cache.open_pools_per_slot),
            ("sampling", slots * self.cache.sampling_per_slot),
            ("scratch", self.num_scratch * (self.cache.page + self.cache.slot)),
        ]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(self.weights.values())

    @property
    def cache_bytes(self) -> int:
        """Bytes of all pages and slots, scratch included."""
        return self.num_pages * self.cache.page + self.num_slots * self.cache.slot

    @property
    def total_bytes(self) -> int:
        """Bytes of everything."""
        return self.weight_bytes + self.cache_bytes


def released_bytes(tensor: HeldTensor) -> int:
    """Bytes of a tensor in the released file format, FP8 scales included."""
    if tensor.precision is Precision.BLOCK_FP8:
        return sum(
            math.prod(part.shape) + SCALE_BYTES * math.prod(scale_shape(part.shape))
            for part in tensor.parts
        )
    return tensor.size * (4 if tensor.precision is Precision.STRICT_F32 else 2)


def held_bytes(tensor: HeldTensor, dtype: str) -> int:
    """Bytes of a tensor as the cpu backend holds it."""
    return tensor.size * (4 if tensor.is_strict else DTYPE_BYTES[dtype])


def weight_bytes(config: Glm5NextConfig, *, dtype: str | None) -> dict[str, int]:
    """Weights by component, held in `dtype`, or in the released format if it is None."""
    totals: dict[str, int] = {}
    for tensor in inventory(config):
        size = released_bytes(tensor) if dtype is None else held_bytes(tensor, dtype)
        totals[tensor.component.value] = totals.get(tensor.component.value, 0) + size
    return totals


def cache_bytes(
    config: Glm5NextConfig, *, page_size: int, dtype: str, latent_dtype: str | None = None
) -> CacheBytes:
    """What a page and a slot cost.

    Args:
        dtype: activation dtype; conv tails and open pools are kept in it.
        latent_dtype: dtype of the latents, `dtype` if None. Index keys follow it, but stay in
            bfloat16 beside FP8 latents.
    """
    latent = latent_dtype or dtype
    key = "bfloat16" if latent == "float8_e4m3fn" else latent
    num_kda, num_dsa = len(config.kda_layers), len(config.dsa_layers)
    full = [i for i in config.dsa_layers if config.indexer_types[i] is IndexerKind.FULL]
    pools = page_size // config.index_kpool
    taps = config.linear_conv_kernel_dim - 1
    state = config.linear_num_heads * config.linear_head_dim**2 * DTYPE_BYTES["float32"]
    tail = taps * 3 * config.linear_size * DTYPE_BYTES[dtype]
    open_pool = (config.index_kpool - 1) * 2 * config.index_head_dim * DTYPE_BYTES[dtype]
    return CacheBytes(
        latents_per_page=num_dsa * page_size * config.kv_lora_rank * DTYPE_BYTES[latent],
        index_keys_per_page=len(full) * pools * config.index_head_dim * DTYPE_BYTES[key],
        states_per_slot=num_kda * state,
        conv_tails_per_slot=num_kda * tail,
        open_pools_per_slot=len(full) * open_pool,
        sampling_per_slot=config.vocab_size * (1 + 4 + 4),
    )


def plan_memory(
    config: Glm5NextConfig,
    shape: ServingShape,
    *,
    cache_budget_bytes: int | None = None,
    latent_dtype: str | None = None,
) -> MemoryPlan:
    """Size weights and caches for a serving shape.

    Weights are dequantised on cpu and stay codes and scales on trn2. Slots are one per sequence
    and scratch row. Pages are what every sequence needs for the longest length, or, if less, what
    the budget leaves for them.

    Raises:
        OptionError: the budget does not hold one sequence of the longest length, or the shape has
            more than one rank.
    """
    if shape.tp_size > 1:
        raise OptionError(f"tp_size is {shape.tp_size}: only one rank per engine can be planned")
    cache = cache_bytes(
        config, page_size=shape.page_size, dtype=shape.dtype, latent_dtype=latent_dtype
    )
    num_slots = shape.max_num_seqs + shape.num_scratch
    num_pages = shape.max_num_seqs * shape.max_pages_per_seq + shape.num_scratch
    if cache_budget_bytes is not None:
        room = (cache_budget_bytes - num_slots * cache.slot) // cache.page
        least = shape.max_pages_per_seq + shape.num_scratch
        if room < least:
            needed = num_slots * cache.slot + least * cache.page
            raise OptionError(
                f"a cache of {_gib(cache_budget_bytes)} does not hold one sequence of "
                f"{shape.max_model_len} tokens beside {num_slots} states: it takes "
                f"{_gib(needed)}; raise --cache-gib or lower --max-model-len or --max-num-seqs"
            )
        num_pages = min(num_pages, room)
    return MemoryPlan(
        weights=weight_bytes(config, dtype=None if shape.backend == "trn2" else shape.dtype),
        cache=cache,
        page_size=shape.page_size,
        num_pages=num_pages,
        num_slots=num_slots,
        num_scratch=shape.num_scratch,
    )


def table(rows: Iterable[tuple[str, int]]) -> str:
    """Lay (what, bytes) rows out as text with their sum."""
    listed = list(rows)
    listed.append(("total", sum(size for _, size in listed)))
    width = max(len(name) for name, _ in listed)
    return "\n".join(f"{name:<{width}}  {size:>18,}  {_gib(size):>12}" for name, size in listed)


def _gib(size: int) -> str:
    return f"{size / 2**30:.3f} GiB"
