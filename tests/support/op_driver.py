"""Runs the references of one op over a sequence or a batch, with random weights and real caches."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from support.op_tensors import empty_caches, random_weights
from trnrt_kernels.contract import Phase, Role
from trnrt_kernels.registry import get_reference, get_spec

NUM_PAGES = 6  # a sequence; page 0 and slot 0 are scratch
PAGE_SIZE = 16
SIZES = {
    **{"N": 4, "D": 24, "M": 24, "H": 3, "K": 20, "C": 60, "W": 4, "U": 3},
    **{"Q": 18, "L": 20, "A": 3, "E": 30, "F": 42, "G": 72, "I": 3, "J": 12, "P": 4, "O": 3},
    **{"R": 8, "X": 16, "Y": 14, "V": 50, "T": PAGE_SIZE, "B": PAGE_SIZE // 4},
}
HALF = {"rms_norm_eps": 1e-5, "hc_eps": 1e-6, "hc_sinkhorn_iters": 20}
CONSTANTS: dict[str, Any] = {
    **HALF,
    "hc_mult": 4,
    "linear_lower_bound": -5.0,
    "num_attention_heads": 3,
    "index_kpool": 4,
    "index_topk": 12,
    "swiglu_limit": 1.0,
    "num_experts_per_tok": 3,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "row_tile": 1,
    "group_name": "",
}


class OpDriver:
    """One layer's half with weights and caches for `num_sequences` sequences."""

    def __init__(
        self,
        name: str,
        *,
        num_sequences: int = 1,
        dtype: torch.dtype = torch.float32,
        **constants: Any,
    ) -> None:
        self.name = name
        self.constants = CONSTANTS | constants
        sizes = SIZES | {"Z": 1 + num_sequences * NUM_PAGES, "S": 1 + num_sequences}
        spec = get_spec(Phase.DECODE, name)
        self.weights = random_weights(spec, sizes)
        self.caches = empty_caches(spec, sizes, dtype)
        self.num_sequences = num_sequences

    def block_table(self, sequence: int) -> Tensor:
        """Pages of a sequence; neighbours in the sequence are no neighbours in the cache."""
        return 1 + sequence + self.num_sequences * torch.arange(NUM_PAGES).flip(0)

    def prefill(
        self, streams_TND: Tensor, start: int = 0, *, sequence: int = 0, **more: Any
    ) -> Any:
        """Run the prefill form over all rows, or over `num_tokens` of them."""
        inputs = {
            "start": torch.tensor([start]),
            "num_tokens": torch.tensor([streams_TND.shape[0]]),
            "state_slot": torch.tensor([1 + sequence]),
            "block_table_P": self.block_table(sequence),
            "export_rows_E": torch.empty(0, dtype=torch.int64),
            "export_slots_E": torch.empty(0, dtype=torch.int64),
            "streams_TND": streams_TND,
        }
        return self._call(Phase.PREFILL, inputs | more)

    def decode(self, streams_BND: Tensor, positions: list[int], **more: Any) -> Any:
        """Run the decode form; row i is sequence i."""
        rows = range(len(positions))
        inputs = {
            "positions_B": torch.tensor(positions),
            "state_slots_B": torch.tensor([1 + row for row in rows]),
            "block_table_BP": torch.stack([self.block_table(row) for row in rows]),
            "is_live_B": torch.ones(len(positions), dtype=torch.bool),
            "streams_BND": streams_BND,
        }
        return self._call(Phase.DECODE, inputs | more)

    def _call(self, phase: Phase, inputs: dict[str, Any]) -> Any:
        spec = get_spec(phase, self.name)
        tensors = {**inputs, **self.weights, **self.caches}
        arguments = [tensors[argument.name] for argument in spec.arguments]
        spec.bind(arguments)
        constants = [self.constants[name] for name, _ in spec.constants]
        return get_reference(phase, self.name)(*arguments, *constants)

    def mutated(self) -> tuple[str, ...]:
        """Names of the op's caches."""
        return get_spec(Phase.DECODE, self.name).names(Role.CACHE)


def random_streams(*shape: int, seed: int = 0) -> Tensor:
    """Streams of some rows: [..., 4, 24]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, SIZES["N"], SIZES["D"], generator=generator)
