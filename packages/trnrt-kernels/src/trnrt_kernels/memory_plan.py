"""Bytes of everything one rank holds: weights, caches, scratch; and what a budget has room for.

Pure arithmetic on the config, the tensor inventory and the serving shape; no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from trnrt_kernels.common.fp8 import scale_shape
from trnrt_kernels.common.score_budget import INDEXER_BYTES
from trnrt_kernels.errors import OptionError
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.inventory import HeldTensor, Precision, inventory
from trnrt_kernels.models.glm5_next.kinds import IndexerKind
from trnrt_kernels.serving import GRID, ServingShape

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float8_e4m3fn": 1}
SCALE_BYTES = 4

BUNDLE_SHARE = Fraction(1, 3)  # of a cache budget: saved states, the rest is pages and slots
MIN_BUNDLES_PER_SEQ = 2  # whatever the share: one to come back to, one being written


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
        return self.bundle + self.sampling_per_slot

    @property
    def bundle(self) -> int:
        """Bytes of one saved state over all layers: a slot without sampling state."""
        return self.states_per_slot + self.conv_tails_per_slot + self.open_pools_per_slot


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """One rank's memory.

    Fields:
        weights: bytes in the form held, by component.
        cache: bytes a page and a slot.
        num_pages, num_slots: scratch included.
        num_scratch: pages, and slots, of padding rows.
        num_bundle_slots: slots of saved states, beside `num_slots`.
        index_score_bytes: most that a step of the sparse indexer holds, at any context; it is
            kept free beside the caches.
    """

    weights: dict[str, int]
    cache: CacheBytes
    page_size: int
    num_pages: int
    num_slots: int
    num_scratch: int
    num_bundle_slots: int
    index_score_bytes: int = INDEXER_BYTES

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
            ("saved states", self.num_bundle_slots * self.cache.bundle),
            ("scratch", self.num_scratch * (self.cache.page + self.cache.slot)),
            ("index scores", self.index_score_bytes),
        ]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(self.weights.values())

    @property
    def cache_bytes(self) -> int:
        """Bytes of all pages and slots, scratch and bundles included."""
        return (
            self.num_pages * self.cache.page
            + self.num_slots * self.cache.slot
            + self.num_bundle_slots * self.cache.bundle
        )

    @property
    def total_bytes(self) -> int:
        """Bytes of everything."""
        return self.weight_bytes + self.cache_bytes + self.index_score_bytes


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


def cache_dtypes(dtype: str, latent_dtype: str | None = None) -> dict[str, str]:
    """Dtype of each cache by name; arguments as in `cache_bytes`."""
    latent = latent_dtype or dtype
    return {
        "conv_tail": dtype,
        "kda_state": "float32",
        "latents": latent,
        "pool_keys": "bfloat16" if latent == "float8_e4m3fn" else latent,
        "open_pool": dtype,
    }


def cache_bytes(
    config: Glm5NextConfig, *, page_size: int, dtype: str, latent_dtype: str | None = None
) -> CacheBytes:
    """What a page and a slot cost.

    Args:
        dtype: activation dtype; conv tails and open pools are kept in it.
        latent_dtype: dtype of the latents, `dtype` if None. Index keys follow it, but stay in
            bfloat16 beside FP8 latents.
    """
    dtypes = cache_dtypes(dtype, latent_dtype)
    latent, key = dtypes["latents"], dtypes["pool_keys"]
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
    bundle_share: Fraction = BUNDLE_SHARE,
) -> MemoryPlan:
    """Size weights and caches for a serving shape.

    Weights are dequantised on cpu and stay codes and scales on trn2. One cache budget holds, in
    this order: a slot per sequence, decoded or computed ahead, and per scratch row, the pages of
    one longest sequence, saved states, and pages with what is left. Saved states take
    `bundle_share` of the budget, but there are at least two per sequence, where they fit, and at
    most one per grid position of all pages. Pages are at most what every decoded sequence needs
    for the longest length. Without a budget, or with one above that, the budget is the one in
    which those pages fit beside the share.

    Args:
        bundle_share: below 1; 0 plans no saved states.

    Raises:
        OptionError: the budget does not hold one sequence of the longest length, or the shape has
            more than one rank.
    """
    if shape.tp_size > 1:
        raise OptionError(f"tp_size is {shape.tp_size}: only one rank per engine can be planned")
    cache = cache_bytes(
        config, page_size=shape.page_size, dtype=shape.dtype, latent_dtype=latent_dtype
    )
    num_slots = shape.max_live_seqs + shape.num_scratch
    least_bytes = (
        num_slots * cache.slot + (shape.max_pages_per_seq + shape.num_scratch) * cache.page
    )
    if cache_budget_bytes is not None and cache_budget_bytes < least_bytes:
        raise OptionError(
            f"a cache of {_gib(cache_budget_bytes)} does not hold one sequence of "
            f"{shape.max_model_len} tokens beside {num_slots} states: it takes "
            f"{_gib(least_bytes)}; raise --cache-gib or lower --max-model-len, --max-num-seqs or "
            f"--prefill-ahead"
        )
    most_pages = shape.max_num_seqs * shape.max_pages_per_seq
    need = num_slots * cache.slot + (most_pages + shape.num_scratch) * cache.page
    at_least = MIN_BUNDLES_PER_SEQ * shape.max_num_seqs if bundle_share else 0
    budget = max(math.ceil(need / (1 - bundle_share)), need + at_least * cache.bundle)
    if cache_budget_bytes is not None:
        budget = min(budget, cache_budget_bytes)
    num_bundles = min(
        max(math.floor(bundle_share * budget / cache.bundle), at_least),
        (budget - least_bytes) // cache.bundle,
        most_pages * shape.page_size // GRID,
    )
    room = (budget - num_slots * cache.slot - num_bundles * cache.bundle) // cache.page
    num_pages = min(most_pages + shape.num_scratch, room)
    return MemoryPlan(
        weights=weight_bytes(config, dtype=None if shape.backend == "trn2" else shape.dtype),
        cache=cache,
        page_size=shape.page_size,
        num_pages=num_pages,
        num_slots=num_slots,
        num_scratch=shape.num_scratch,
        num_bundle_slots=num_bundles,
    )


def table(rows: Iterable[tuple[str, int]]) -> str:
    """Lay (what, bytes) rows out as text with their sum."""
    listed = list(rows)
    listed.append(("total", sum(size for _, size in listed)))
    width = max(len(name) for name, _ in listed)
    return "\n".join(f"{name:<{width}}  {size:>18,}  {_gib(size):>12}" for name, size in listed)


def _gib(size: int) -> str:
    return f"{size / 2**30:.3f} GiB"
