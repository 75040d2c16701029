"""The bytes of the caches as the tiers below the device copy them."""

from __future__ import annotations

import torch
from torch import Tensor

from trnrt_kernels.models.glm5_next.caches import Caches
from trnrt_kernels.sampling import SamplingState
from trnrt_kernels.serving import GRID, round_up


class CacheBytes:
    """See pages and slots of caches in host memory as bytes, nothing copied."""

    def __init__(self, caches: Caches, sampling_state: SamplingState) -> None:
        self._caches = caches
        self._sampling_state = sampling_state
        self._page_size = caches.geometry.page_size

    def page(self, page_id: int, *, num_tokens: int) -> list[memoryview]:
        """The head of a page; each tensor's rows lie in the order of the tokens.

        What it holds behind the tokens, up to the grid, is cleared by whoever writes there.
        """
        num_tokens = round_up(num_tokens, GRID)
        views = self._caches.page_views(page_id)
        return [_bytes(view[: view.nbytes * num_tokens // self._page_size]) for view in views]

    def states(self, slot: int) -> list[memoryview]:
        """States and conv tails; on the grid there is no open pool."""
        return [_bytes(view) for view in self._caches.slot_views(slot, with_open_pool=False)]

    def live(self, slot: int) -> list[memoryview]:
        """All of a sequence's slot: its caches, then its row of the sampling state."""
        rows = [tensor[slot].view(torch.uint8) for tensor in self._sampling_state]
        return [_bytes(v) for v in (*self._caches.slot_views(slot, with_open_pool=True), *rows)]


def _bytes(view: Tensor) -> memoryview:
    return view.numpy().data
