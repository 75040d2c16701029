"""Cache tensors of all layers: paged ones grow with tokens, slot ones are fixed per sequence.

Page ids and slot ids [0, num_scratch) belong to padding rows, one each; page 0 also takes what a
prefill chunk writes for rows it does not have. Nothing here is cleared between owners: a sequence
at position 0 ignores its slot, and a pool is cleared by whoever writes its first token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.layers import SegmentKind, attention_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGeometry:
    """How many pages and slots there are, scratch included.

    Fields:
        page_size: tokens a page; a multiple of 64, the grid of prefill.
        num_scratch: pages, and slots, that belong to padding rows; the largest decode batch.
    """

    num_pages: int
    page_size: int
    num_state_slots: int
    num_scratch: int

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


class Caches:
    """One mapping of cache names to tensors per layer, in the ops' argument names.

    KDA layers: `conv_tail` [S, 3, 3*C] activation dtype, `kda_state` [S, H, K, K] float32.
    DSA layers: `latents` [pages, page_size, L] in the cache dtype; with an indexer of their own
    also `pool_keys` [pages, pools a page, J] in the cache dtype (bfloat16 beside FP8 latents) and
    `open_pool` [S, index_kpool - 1, 2 (key, gate), J] activation dtype.
    """

    def __init__(self, geometry: CacheGeometry, layers: list[dict[str, Tensor]]) -> None:
        self.geometry = geometry
        self.layers = layers

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


def _kda_caches(
    config: Glm5NextConfig, geometry: CacheGeometry, dtype: torch.dtype
) -> dict[str, Tensor]:
    slots, heads, size = geometry.num_state_slots, config.linear_num_heads, config.linear_head_dim
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
        "open_pool": torch.zeros(geometry.num_state_slots, members, 2, size, dtype=dtype),
    }


def _latents(config: Glm5NextConfig, geometry: CacheGeometry, dtype: torch.dtype) -> Tensor:
    return torch.zeros(geometry.num_pages, geometry.page_size, config.kv_lora_rank, dtype=dtype)
