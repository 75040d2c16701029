"""What a simulated engine has room for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self, TypedDict, Unpack

from trnrt_kernels.memory_plan import BUNDLE_SHARE, plan_memory
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.tensor_check import stored_dtype
from trnrt_kernels.models.shipped import find_model_dir
from trnrt_kernels.serving import PAGE_SIZE, ServingShape

GIB = 2**30

# GLM-5.3-Flash, whole model: 11 layers of FP8 latents (512 bytes a token) and bfloat16 pool keys
# (128 of 2 bytes per 4 tokens); 34 layers of float32 states (64 heads of 128 x 128) and bfloat16
# conv tails (3 taps of 3 x 8192).
RELEASED_PAGE_BYTES = 11 * PAGE_SIZE * (512 + 128 * 2 // 4)
RELEASED_STATE_BYTES = 34 * (64 * 128 * 128 * 4 + 3 * 3 * 8192 * 2)
RELEASED_WINDOW = 1_048_576
RELEASED_INDEX_KPOOL = 4


class ShapeSettings(TypedDict, total=False):
    """What may be set of a simulated engine's shape; see `ServingShape.resolve`."""

    max_num_seqs: int
    prefill_ahead: int
    max_model_len: int | None
    max_num_batched_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSizes:
    """Budgets of one engine, scratch not counted.

    Fields:
        shape: page size, window, sequences at once and buckets.
        num_pages, num_bundle_slots: on the device.
        page_bytes, state_bytes: of a page and of a bundle's states in the tiers below.
        host_bytes, disk_bytes: budgets of the tiers below; 0 = there is none.
    """

    shape: ServingShape
    num_pages: int
    num_bundle_slots: int
    page_bytes: int = RELEASED_PAGE_BYTES
    state_bytes: int = RELEASED_STATE_BYTES
    max_decode_stall_ms: int = 500
    host_bytes: int = 0
    disk_bytes: int = 0

    @classmethod
    def released(
        cls,
        cache_bytes: int,
        *,
        host_bytes: int = 0,
        disk_bytes: int = 0,
        max_decode_stall_ms: int = 500,
        **of_shape: Unpack[ShapeSettings],
    ) -> Self:
        """Split a device's budget as the engine does, with the released model's sizes.

        Args:
            of_shape: what `ServingShape.resolve` leaves to the settings.

        Raises:
            OptionError: a value is out of range.
        """
        shape = ServingShape.resolve(
            window=RELEASED_WINDOW,
            index_kpool=RELEASED_INDEX_KPOOL,
            backend="trn2",
            dtype="bfloat16",
            **of_shape,
        )
        num_slots = math.floor(BUNDLE_SHARE * cache_bytes / RELEASED_STATE_BYTES)
        rest = cache_bytes - num_slots * RELEASED_STATE_BYTES
        return cls(
            shape=shape,
            num_pages=rest // RELEASED_PAGE_BYTES,
            num_bundle_slots=num_slots,
            max_decode_stall_ms=max_decode_stall_ms,
            host_bytes=host_bytes,
            disk_bytes=disk_bytes,
        )

    @classmethod
    def of_model(
        cls,
        model: str,
        *,
        cache_bytes: int | None = None,
        host_bytes: int = 0,
        disk_bytes: int = 0,
        max_decode_stall_ms: int = 500,
        **of_shape: Unpack[ShapeSettings],
    ) -> Self:
        """Plan as a cpu engine does for a model folder or a shipped model; no weights are read.

        Args:
            of_shape: what `ServingShape.resolve` leaves to the settings.

        Raises:
            TrnrtKernelsError: there is no such model, or it does not fit.
        """
        folder = find_model_dir(model)
        config = Glm5NextConfig.from_dir(folder)
        shape = ServingShape.resolve(
            window=config.max_position_embeddings,
            index_kpool=config.index_kpool,
            backend="cpu",
            dtype=stored_dtype(folder, config),
            **of_shape,
        )
        memory = plan_memory(config, shape, cache_budget_bytes=cache_bytes)
        return cls(
            shape=shape,
            num_pages=memory.num_pages - memory.num_scratch,
            num_bundle_slots=memory.num_bundle_slots,
            page_bytes=memory.cache.page,
            state_bytes=memory.cache.states_per_slot + memory.cache.conv_tails_per_slot,
            max_decode_stall_ms=max_decode_stall_ms,
            host_bytes=host_bytes,
            disk_bytes=disk_bytes,
        )

    @property
    def page_size(self) -> int:
        """Tokens a page."""
        return self.shape.page_size

    @property
    def device_bytes(self) -> int:
        """Bytes of all pages and bundles on the device."""
        return self.num_pages * self.page_bytes + self.num_bundle_slots * self.state_bytes
