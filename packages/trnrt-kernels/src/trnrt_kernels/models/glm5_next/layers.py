"""The layer plan: which segments a step runs, in order. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.kinds import FfnKind, IndexerKind, LayerKind


class SegmentKind(StrEnum):
    """The graphs of a step; all layers of a kind share one."""

    EMBED = "embed"
    KDA = "kda"
    DSA = "dsa"
    DSA_SHARED = "dsa_shared"
    DENSE = "dense"
    MOE = "moe"
    HEAD = "head"

    @property
    def op_name(self) -> str:
        """Name of the op the segment is made of."""
        is_half = self not in (SegmentKind.EMBED, SegmentKind.HEAD)
        return f"{self}_half" if is_half else str(self)


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a step; `layer` is None for the embedding and the head."""

    kind: SegmentKind
    layer: int | None = None


def layer_plan(config: Glm5NextConfig) -> tuple[Segment, ...]:
    """Segments of a whole step: embedding, two halves a layer, head."""
    return (Segment(SegmentKind.EMBED), *_halves(config), Segment(SegmentKind.HEAD))


def attention_kind(config: Glm5NextConfig, layer: int) -> SegmentKind:
    """Kind of a layer's attention half."""
    if config.layer_types[layer] is LayerKind.KDA:
        return SegmentKind.KDA
    is_shared = config.indexer_types[layer] is IndexerKind.SHARED
    return SegmentKind.DSA_SHARED if is_shared else SegmentKind.DSA


def _halves(config: Glm5NextConfig) -> Iterator[Segment]:
    for layer in range(config.num_hidden_layers):
        yield Segment(attention_kind(config, layer), layer)
        is_dense = config.mlp_layer_types[layer] is FfnKind.DENSE
        yield Segment(SegmentKind.DENSE if is_dense else SegmentKind.MOE, layer)
