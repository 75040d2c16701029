"""The two sides of the model benchmark behind one interface: prefill a prompt, decode one step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from trnrt_kernels.models.glm5_next.caches import CacheGeometry, Caches
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.inputs import DecodeInputs, PrefillInputs
from trnrt_kernels.models.glm5_next.model import Model
from trnrt_kernels.models.glm5_next.weights import load_weights
from trnrt_kernels.numeric import NumericMode

PAGE_SIZE = 256
CHUNK = 512
NUM_SCRATCH = 12

Run = Callable[[], Any]


class Contestant(Protocol):
    """An implementation of the toy."""

    name: str

    def prefill(self, token_ids: Tensor) -> Run:
        """A run that computes a prompt and the logits of its last token [V], which it returns."""

    def decode(self, batch: int, context: int) -> Run:
        """A run that computes one token of `batch` sequences of `context` tokens."""


class Trnrt:
    """This project, eager, in one numeric mode."""

    def __init__(self, folder: Path, mode: NumericMode) -> None:
        config = Glm5NextConfig.from_dir(folder)
        self.name = f"trnrt {mode}"
        self.model = Model(config, load_weights(folder, config, dtype="float32"), numeric_mode=mode)

    def caches(self, tokens: int, batch: int = 1) -> Caches:
        """Caches with room for `batch` sequences, filled with noise as a context would."""
        geometry = CacheGeometry(
            num_pages=NUM_SCRATCH + batch * -(-tokens // PAGE_SIZE),
            page_size=PAGE_SIZE,
            num_state_slots=NUM_SCRATCH + batch,
            num_scratch=NUM_SCRATCH,
        )
        caches = Caches.allocate(self.model.config, geometry, dtype=torch.float32)
        for layer in caches.layers:
            for tensor in layer.values():
                tensor.normal_(std=0.1)
        return caches

    def prefill(self, token_ids: Tensor) -> Run:
        return self.prefill_into(self.caches(token_ids.shape[0]), token_ids)

    def prefill_into(self, caches: Caches, token_ids: Tensor) -> Run:
        """A prefill in chunks of 512 on given caches."""
        total = token_ids.shape[0]
        pages = NUM_SCRATCH + torch.arange(-(-total // PAGE_SIZE))
        last_row = torch.tensor([(total - 1) % CHUNK])

        def run() -> Tensor:
            for start in range(0, total, CHUNK):
                chunk = token_ids[start : start + CHUNK]
                inputs = PrefillInputs(
                    token_ids_T=chunk,
                    start=torch.tensor([start]),
                    num_tokens=torch.tensor([chunk.shape[0]]),
                    state_slot=torch.tensor([NUM_SCRATCH]),
                    block_table_P=pages[: -(-(start + CHUNK) // PAGE_SIZE)],
                )
                if start + CHUNK < total:
                    self.model.prefill(inputs, caches)
            return self.model.prefill_logits(inputs, caches, last_row)[0]

        return run

    def decode(self, batch: int, context: int) -> Run:
        pages = -(-(context + 1) // PAGE_SIZE)
        caches = self.caches(context + 1, batch)
        inputs = DecodeInputs(
            token_ids_B=torch.arange(batch),
            positions_B=torch.full((batch,), context),
            state_slots_B=NUM_SCRATCH + torch.arange(batch),
            block_table_BP=NUM_SCRATCH + torch.arange(batch * pages).view(batch, pages),
            is_live_B=torch.ones(batch, dtype=torch.bool),
        )
        return lambda: self.model.decode(inputs, caches)


class Transformers:
    """The reference implementation, its default attention, cached decode."""

    name = "transformers"

    def __init__(self, folder: Path) -> None:
        from transformers import Glm5NextForConditionalGeneration
        from transformers.utils import logging

        logging.set_verbosity_error()
        logging.disable_progress_bar()
        self.model = Glm5NextForConditionalGeneration.from_pretrained(
            folder, dtype=torch.float32
        ).eval()

    def _forward(self, token_ids: Tensor, cache: Any = None) -> Any:
        with torch.no_grad():
            return self.model(
                input_ids=token_ids, past_key_values=cache, use_cache=True, logits_to_keep=1
            )

    def prefill(self, token_ids: Tensor) -> Run:
        return lambda: self._forward(token_ids.unsqueeze(0)).logits[0, -1]

    def decode(self, batch: int, context: int) -> Run:
        """The context grows by one each time the run is called."""
        generator = torch.Generator().manual_seed(0)
        prompt = torch.randint(4096, (batch, context), generator=generator)
        cache = self._forward(prompt).past_key_values
        token = torch.zeros(batch, 1, dtype=torch.int64)
        return lambda: self._forward(token, cache)
