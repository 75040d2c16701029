"""Golden data of a model: a checkpoint, inputs, and what every part must give for them.

A folder holds `config.json`, `model.safetensors`, `golden.safetensors` and `meta.json`; what is in
them is told in the README beside the folders under `tests/golden/glm5_next`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from trnrt_engine.errors import GoldenError
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.weights import Weights, load_weights


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far a value may be off: `absolute + relative * |expected|`."""

    absolute: float
    relative: float = 0.0

    def __str__(self) -> str:
        relative = f" + {self.relative:g}*|x|" if self.relative else ""
        return f"{self.absolute:g}{relative}"


# From the README of the golden data: rounding of float32 reaches 5e-4, a bug starts at 1e-1.
VALUES = Tolerance(2e-3, 1e-3)
STREAMS = Tolerance(5e-3, 1e-3)  # they grow with depth
OWN_PATHS = Tolerance(1e-3)  # prefill and decode of one implementation against each other
EXACT = Tolerance(0.0)


@dataclass(frozen=True, slots=True)
class Check:
    """One quantity compared; `error` is the largest difference, or a count of wrong items.

    Fields:
        share: the largest difference as a share of what is allowed at its place; holds up to 1.
        where: which part the largest share was found in, empty if there is only one.
    """

    quantity: str
    error: float
    tolerance: Tolerance
    share: float
    where: str = ""

    @property
    def holds(self) -> bool:
        """Whether the quantity is within tolerance; NaN never is."""
        return self.share <= 1.0


@dataclass(frozen=True, slots=True)
class GoldenCase:
    """One folder of golden data, loaded in float32."""

    name: str
    config: Glm5NextConfig
    weights: Weights
    expected: dict[str, Tensor]
    split: int
    stream_positions: list[int]

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a folder.

        Raises:
            GoldenError: a golden file is missing or unreadable.
            CheckpointError, UnsupportedConfig: the model cannot be loaded.
        """
        try:
            expected = load_file(folder / "golden.safetensors")
            meta = json.loads((folder / "meta.json").read_text("utf-8"))
            split, positions = meta["split"], meta["layer_stream_positions"]
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise GoldenError(f"{folder} holds no golden data: {error}") from error
        config = Glm5NextConfig.from_dir(folder)
        weights = load_weights(folder, config, dtype="float32")
        return cls(folder.name, config, weights, expected, split, positions)

    @property
    def input_ids(self) -> Tensor:
        """The prompt [T]."""
        return self.expected["input_ids"]

    def layers_of(self, quantity: str) -> list[int]:
        """Layers that have a per-layer quantity, as `latent_kv`."""
        prefix = f"{quantity}."
        return sorted(int(n.removeprefix(prefix)) for n in self.expected if n.startswith(prefix))


def compare(quantity: str, parts: dict[str, tuple[Tensor, Tensor]], tolerance: Tolerance) -> Check:
    """Compare (actual, expected) pairs and keep the worst place of all."""
    error, share, where = 0.0, 0.0, ""
    for name, (actual, expected) in parts.items():
        if actual.shape != expected.shape:
            raise ValueError(f"{quantity} {name}: {actual.shape} against {expected.shape}")
        difference = (actual.double() - expected.double()).abs()
        allowed = tolerance.absolute + tolerance.relative * expected.double().abs()
        part_share = (difference / allowed).nan_to_num(nan=math.inf).max().item()
        error = max(error, difference.nan_to_num(nan=math.inf).max().item())
        if part_share > share:
            share, where = part_share, name
    return Check(quantity, error, tolerance, share, where if len(parts) > 1 else "")


def count_wrong(quantity: str, wrong: dict[str, int]) -> Check:
    """Make a check of items that must be equal."""
    total = sum(wrong.values())
    worst = max(wrong, key=lambda name: wrong[name])
    share = math.inf if total else 0.0
    return Check(quantity, total, EXACT, share, worst if total and len(wrong) > 1 else "")


def unequal_rows(actual: Tensor, expected: Tensor) -> int:
    """Rows that differ as sets; -1 pads both."""
    return sum(
        set(row_a) - {-1} != set(row_b) - {-1}
        for row_a, row_b in zip(actual.tolist(), expected.tolist(), strict=True)
    )


def token_positions(pools_TX: Tensor, positions_T: Tensor, pool_size: int) -> Tensor:
    """Token positions a selection stands for, those of the open pool included; -1 pads."""
    member = torch.arange(pool_size)
    pools = pools_TX.unsqueeze(2)
    selected = torch.where(pools >= 0, pools * pool_size + member, -1).flatten(1)
    num_complete = (positions_T + 1) // pool_size
    tail = num_complete.unsqueeze(1) * pool_size + member[:-1]
    return torch.cat((selected, torch.where(tail <= positions_T.unsqueeze(1), tail, -1)), dim=1)
