"""Cache tensors of all layers: paged ones grow with tokens, slot ones are fixed per sequence.

Page ids and slot ids [0, num_scratch) belong to padding rows, one each; page 0 also takes what a
prefill chunk writes for rows it does not have. Nothing here is cleared between owners: a sequence
at position 0 ignores its slot, and a pool is cleared by whoever writes its first token.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.layers import SegmentKind, attention_kind

Buffer = bytes | bytearray | memoryview

STATE_CACHES = ("conv_tail", "kda_state")
OPEN_POOL_CACHES = ("open_pool",)
PAGED_CACHES = ("latents", "pool_keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGeometry:
    """How many pages and slots there are, scratch included.

    Slot ids in order: scratch, the working slots of running sequences, then bundle slots.

    Fields:
        page_size: tokens a page; a multiple of 64, the grid of prefill.
        num_state_slots: scratch and working slots; sampling state exists for these.
        num_scratch: pages, and slots, that belong to padding rows; the largest decode batch.
        num_bundle_slots: slots that hold saved states, behind the others.
    """

    num_pages: int
    page_size: int
    num_state_slots: int
    num_scratch: int
    num_bundle_slots: int = 0

    def __post_init__(self) -> None:
        if self.page_size < 1 or self.num_scratch < 1:
            raise ValueError(
                f"page_size ({self.page_size}) and num_scratch ({self.num_scratch}) "
                f"must be positive"
            )
        for name in ("num_pages", "num_state_slots"):
            if getattr(self, name) <= self.num_scratch:
                raise ValueError(
                    f"{name} ({getattr(self, name)}) must exceed num_scratch ({self.num_scratch})"
                )
        if self.num_bundle_slots < 0:
            raise ValueError(f"num_bundle_slots ({self.num_bundle_slots}) must not be negative")

    @property
    def first_bundle_slot(self) -> int:
        """Id of the first bundle slot."""
        return self.num_state_slots

    @property
    def num_slots(self) -> int:
        """All slots: scratch, working and bundle."""
        return self.num_state_slots + self.num_bundle_slots


class Caches:
    """One mapping of cache names to tensors per layer, in the ops' argument names.

    KDA layers: `conv_tail` [S, 3, 3*C] activation dtype, `kda_state` [S, H, K, K] float32.
    DSA layers: `latents` [pages, page_size, L] in the cache dtype; with an indexer of their own
    also `pool_keys` [pages, pools a page, J] in the cache dtype (bfloat16 beside FP8 latents) and
    `open_pool` [S, index_kpool - 1, 2 (key, gate), J] activation dtype.

    As bytes, a slot is `conv_tail`, `kda_state` of each KDA layer in ascending order, then, where
    asked for, `open_pool` of each DSA layer with an indexer: a state on the grid has none, and is
    the first part of one with it. A page is `latents`, then `pool_keys` where there are any, of
    each DSA layer in ascending order. Every part is contiguous.
    """

    def __init__(self, geometry: CacheGeometry, layers: list[dict[str, Tensor]]) -> None:
        self.geometry = geometry
        self.layers = layers
        self._states = _named(layers, STATE_CACHES)
        self._open_pools = _named(layers, OPEN_POOL_CACHES)
        self._paged = _named(layers, PAGED_CACHES)

    @classmethod
    def allocate(
        cls,
        config: Glm5NextConfig,
        geometry: CacheGeometry,
        *,
        dtype: torch.dtype,
        latent_dtype: torch.dtype | None = None,
    ) -> Self:
        """Allocate the caches of all layers.

        Args:
            dtype: activation dtype.
            latent_dtype: dtype of the latents, `dtype` if None; torch.float8_e4m3fn is allowed.

        Raises:
            ValueError: pages do not hold whole pools.
        """
        if geometry.page_size % config.index_kpool:
            raise ValueError(
                f"page_size {geometry.page_size} is no multiple of index_kpool "
                f"{config.index_kpool}: pages hold whole pools"
            )
        latent_dtype = latent_dtype or dtype
        make = {
            SegmentKind.KDA: lambda: _kda_caches(config, geometry, dtype),
            SegmentKind.DSA: lambda: _dsa_caches(config, geometry, dtype, latent_dtype),
            SegmentKind.DSA_SHARED: lambda: {"latents": _latents(config, geometry, latent_dtype)},
        }
        kinds = (attention_kind(config, layer) for layer in range(config.num_hidden_layers))
        return cls(geometry, [make[kind]() for kind in kinds])

    @property
    def num_bytes(self) -> int:
        """Bytes of all cache tensors."""
        return sum(tensor.nbytes for layer in self.layers for tensor in layer.values())

    @property
    def page_nbytes(self) -> int:
        """Bytes of one page over all layers."""
        return sum(tensor[0].nbytes for tensor in self._paged)

    def slot_nbytes(self, *, with_open_pool: bool) -> int:
        """Bytes of one slot over all layers."""
        return sum(tensor[0].nbytes for tensor in self._slot_tensors(with_open_pool))

    def page_views(self, page: int) -> list[Tensor]:
        """The bytes of a page, uint8 [n] each, sharing memory; order as said above."""
        return _byte_views(self._paged, page)

    def slot_views(self, slot: int, *, with_open_pool: bool) -> list[Tensor]:
        """The bytes of a slot, uint8 [n] each, sharing memory; order as said above."""
        return _byte_views(self._slot_tensors(with_open_pool), slot)

    def copy_page(self, src: int, dst: int) -> None:
        """Copy a page bit for bit, all layers."""
        for target, source in zip(self.page_views(dst), self.page_views(src), strict=True):
            target.copy_(source)

    def copy_slot(self, src: int, dst: int) -> None:
        """Copy a slot bit for bit, all layers, its open pools too."""
        sources = self.slot_views(src, with_open_pool=True)
        for target, source in zip(self.slot_views(dst, with_open_pool=True), sources, strict=True):
            target.copy_(source)

    def fill_page(self, page: int, data: Buffer) -> None:
        """Overwrite a page with the joined bytes of `page_views`.

        Raises:
            ValueError: `data` has another size; nothing is written.
        """
        _fill(self.page_views(page), data, f"page {page}")

    def fill_slot(self, slot: int, data: Buffer, *, with_open_pool: bool) -> None:
        """Overwrite a slot with the joined bytes of `slot_views`.

        Raises:
            ValueError: `data` has another size; nothing is written.
        """
        _fill(self.slot_views(slot, with_open_pool=with_open_pool), data, f"slot {slot}")

    def _slot_tensors(self, with_open_pool: bool) -> list[Tensor]:
        return [*self._states, *self._open_pools] if with_open_pool else self._states


def _named(layers: Iterable[dict[str, Tensor]], names: tuple[str, ...]) -> list[Tensor]:
    return [layer[name] for layer in layers for name in names if name in layer]


def _byte_views(tensors: Iterable[Tensor], index: int) -> list[Tensor]:
    return [tensor[index].view(torch.uint8).view(-1) for tensor in tensors]


def _fill(views: list[Tensor], data: Buffer, name: str) -> None:
    source = memoryview(data).cast("B")
    expected = sum(view.nbytes for view in views)
    if source.nbytes != expected:
        raise ValueError(f"{name} takes {expected} bytes, got {source.nbytes}")
    start = 0
    for view in views:
        # Through numpy: torch wraps read-only memory, as a file mapping is, only with a warning.
        view.numpy().data[:] = source[start : start + view.nbytes]
        start += view.nbytes


def _kda_caches(
    config: Glm5NextConfig, geometry: CacheGeometry, dtype: torch.dtype
) -> dict[str, Tensor]:
    slots, heads, size = geometry.num_slots, config.linear_num_heads, config.linear_head_dim
    taps = config.linear_conv_kernel_dim - 1
    return {
        "conv_tail": torch.zeros(slots, taps, 3 * config.linear_size, dtype=dtype),
        "kda_state": torch.zeros(slots, heads, size, size, dtype=torch.float32),
    }


def _dsa_caches(
    config: Glm5NextConfig,
    geometry: CacheGeometry,
    dtype: torch.dtype,
    latent_dtype: torch.dtype,
) -> dict[str, Tensor]:
    pools = geometry.page_size // config.index_kpool
    key_dtype = torch.bfloat16 if latent_dtype == torch.float8_e4m3fn else latent_dtype
    size, members = config.index_head_dim, config.index_kpool - 1
    return {
        "latents": _latents(config, geometry, latent_dtype),
        "pool_keys": torch.zeros(geometry.num_pages, pools, size, dtype=key_dtype),
        "open_pool": torch.zeros(geometry.num_slots, members, 2, size, dtype=dtype),
    }


def _latents(config: Glm5NextConfig, geometry: CacheGeometry, dtype: torch.dtype) -> Tensor:
    return torch.zeros(geometry.num_pages, geometry.page_size, config.kv_lora_rank, dtype=dtype)
