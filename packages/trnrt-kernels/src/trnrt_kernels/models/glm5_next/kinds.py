"""What a layer of the family is made of."""

from enum import StrEnum


class LayerKind(StrEnum):
    """The attention half of a layer."""

    KDA = "kda"
    DSA = "dsa"


class FfnKind(StrEnum):
    """The feed-forward half of a layer."""

    DENSE = "dense"
    SPARSE = "sparse"


class IndexerKind(StrEnum):
    """Where a DSA layer's token selection comes from: its own indexer or the layer before."""

    FULL = "full"
    SHARED = "shared"
