"""Models of the golden cases, and sequences on shared caches, for tests of the model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from trnrt_kernels.models.glm5_next.caches import CacheGeometry, Caches
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.inputs import DecodeInputs, PrefillInputs
from trnrt_kernels.models.glm5_next.model import Model
from trnrt_kernels.models.glm5_next.weights import load_weights
from trnrt_kernels.numeric import NumericMode
from trnrt_kernels.serving import MAX_EXPORTS

GOLDEN = Path(__file__).parents[1] / "golden" / "glm5_next"
CASES = ("kpool4", "kpool16", "shared_indexer", "long_group", "fp8_block")
PAGE_SIZE = 64
PAGES_A_SEQUENCE = 8
NUM_SCRATCH = 12


@cache
def golden_model(
    case: str, *, numeric_mode: NumericMode = NumericMode.STRICT, dtype: str = "float32"
) -> Model:
    """A golden case's model; shared between tests, which must not change its weights."""
    config = Glm5NextConfig.from_dir(GOLDEN / case)
    weights = load_weights(GOLDEN / case, config, dtype=dtype)
    return Model(config, weights, numeric_mode=numeric_mode)


def random_ids(model: Model, count: int, seed: int) -> Tensor:
    """Token ids of the model's vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(model.config.vocab_size, (count,), generator=generator)


@dataclass
class Sequences:
    """Sequences 0..n-1 of one model on shared caches; each owns a slot and eight pages.

    Pages of different sequences are interleaved, so that no page id equals a position.
    """

    model: Model
    caches: Caches
    num_sequences: int

    @classmethod
    def make(
        cls,
        model: Model,
        num_sequences: int,
        *,
        fill: float = 0.0,
        latent_dtype: torch.dtype | None = None,
    ) -> Sequences:
        """Allocate caches and fill every tensor of them, scratch included."""
        geometry = CacheGeometry(
            num_pages=NUM_SCRATCH + num_sequences * PAGES_A_SEQUENCE,
            page_size=PAGE_SIZE,
            num_state_slots=NUM_SCRATCH + num_sequences,
            num_scratch=NUM_SCRATCH,
        )
        caches = Caches.allocate(
            model.config, geometry, dtype=model.weights.dtype, latent_dtype=latent_dtype
        )
        for layer in caches.layers:
            for tensor in layer.values():
                tensor.copy_(torch.full(tensor.shape, fill))
        return cls(model, caches, num_sequences)

    def copy(self) -> Sequences:
        """The same sequences on caches of their own."""
        layers = [{k: v.clone() for k, v in layer.items()} for layer in self.caches.layers]
        return Sequences(self.model, Caches(self.caches.geometry, layers), self.num_sequences)

    def slot(self, sequence: int) -> int:
        """State slot of a sequence."""
        return NUM_SCRATCH + sequence

    def pages(self, sequence: int) -> Tensor:
        """Pages of a sequence in order."""
        return NUM_SCRATCH + sequence + self.num_sequences * torch.arange(PAGES_A_SEQUENCE)

    def chunk_inputs(
        self,
        sequence: int,
        token_ids: Tensor,
        start: int,
        *,
        rows: int | None = None,
        exports: Mapping[int, int] | None = None,
    ) -> PrefillInputs:
        """Inputs of a chunk, padded to `rows`; `exports` maps rows to sequences' slots."""
        count = token_ids.shape[0]
        pairs = [(row, self.slot(to)) for row, to in (exports or {}).items()]
        pairs += [(64, 0)] * (MAX_EXPORTS - len(pairs)) * (exports is not None)
        return PrefillInputs(
            token_ids_T=torch.nn.functional.pad(token_ids, (0, (rows or count) - count)),
            start=torch.tensor([start]),
            num_tokens=torch.tensor([count]),
            state_slot=torch.tensor([self.slot(sequence)]),
            block_table_P=self.pages(sequence),
            export_rows_E=torch.tensor([row for row, _ in pairs], dtype=torch.int64),
            export_slots_E=torch.tensor([slot for _, slot in pairs], dtype=torch.int64),
        )

    def prefill(
        self,
        sequence: int,
        token_ids: Tensor,
        start: int = 0,
        *,
        rows: int | None = None,
        exports: Mapping[int, int] | None = None,
    ) -> Tensor:
        """Append a chunk and return the logits of its tokens."""
        inputs = self.chunk_inputs(sequence, token_ids, start, rows=rows, exports=exports)
        return self.model.prefill_logits(inputs, self.caches, torch.arange(token_ids.shape[0]))

    def batch_inputs(
        self, sequences: list[int], token_ids: list[int], positions: list[int], *, rows: int = 0
    ) -> DecodeInputs:
        """Inputs of a decode batch; rows behind the live ones are scratch."""
        live = len(sequences)
        dead = range(live, max(rows, live))
        tables = [self.pages(s) for s in sequences]
        tables += [torch.full((PAGES_A_SEQUENCE,), row) for row in dead]
        return DecodeInputs(
            token_ids_B=torch.tensor([*token_ids, *(0 for _ in dead)]),
            positions_B=torch.tensor([*positions, *(0 for _ in dead)]),
            state_slots_B=torch.tensor([*(self.slot(s) for s in sequences), *dead]),
            block_table_BP=torch.stack(tables),
            is_live_B=torch.tensor([True] * live + [False for _ in dead]),
        )

    def decode(
        self, sequences: list[int], token_ids: list[int], positions: list[int], *, rows: int = 0
    ) -> Tensor:
        """Append a token to each sequence and return their logits."""
        inputs = self.batch_inputs(sequences, token_ids, positions, rows=rows)
        return self.model.decode_logits(inputs, self.caches)[: len(sequences)]

    def state(self, sequence: int, num_tokens: int) -> list[Tensor]:
        """Everything the caches hold of a sequence's first `num_tokens` tokens."""
        kpool = self.model.config.index_kpool
        used = {"latents": num_tokens, "pool_keys": num_tokens // kpool}
        parts = []
        for layer in self.caches.layers:
            for name, tensor in layer.items():
                if name in used:
                    rows = tensor.index_select(0, self.pages(sequence)).flatten(0, 1)
                    parts.append(rows[: used[name]].clone())
                elif name == "open_pool":
                    parts.append(tensor[self.slot(sequence), : num_tokens % kpool].clone())
                else:
                    parts.append(tensor[self.slot(sequence)].clone())
        return parts


def largest_difference(actual: list[Tensor], expected: list[Tensor]) -> float:
    """Largest absolute difference of two lists of tensors; infinite where one is NaN."""
    differences = [
        (a.double() - b.double()).abs().nan_to_num(nan=math.inf).max().item()
        for a, b in zip(actual, expected, strict=True)
        if a.numel()
    ]
    return max(differences)


def are_equal(actual: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether two lists of tensors have the same bits."""
    return all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))
