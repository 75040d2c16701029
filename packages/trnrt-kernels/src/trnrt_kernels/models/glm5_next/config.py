"""The model's dimensions and layer plan, whatever spelling the checkpoint used."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from trnrt_kernels.errors import UnsupportedConfig
from trnrt_kernels.models.glm5_next.config_json import FAMILY, read_fields
from trnrt_kernels.models.glm5_next.kinds import FfnKind, IndexerKind, LayerKind

DTYPES = ("bfloat16", "float32")

_MAY_BE_ZERO = frozenset({"num_nextn_predict_layers", "pad_token_id"})
_POSITIVE_FLOATS = ("routed_scaling_factor", "swiglu_limit", "hc_eps", "rms_norm_eps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Glm5NextConfig:
    """A text model of the `glm5_next` family; names and defaults are transformers'.

    `layer_types`, `mlp_layer_types` and `indexer_types` have one entry per layer;
    `indexer_types` means something for DSA layers only.
    """

    layer_types: tuple[LayerKind, ...]
    mlp_layer_types: tuple[FfnKind, ...]
    indexer_types: tuple[IndexerKind, ...]
    vocab_size: int = 154_880
    hidden_size: int = 4096
    intermediate_size: int = 12_288
    moe_intermediate_size: int = 2048
    num_hidden_layers: int = 45
    num_attention_heads: int = 64
    q_lora_rank: int = 1536
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 256
    v_head_dim: int = 256
    n_routed_experts: int = 288
    n_shared_experts: int = 1
    num_experts_per_tok: int = 8
    n_group: int = 1
    topk_group: int = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 2.5
    swiglu_limit: float = 10.0
    hc_mult: int = 4
    hc_eps: float = 1e-6
    hc_sinkhorn_iters: int = 20
    rms_norm_eps: float = 1e-5
    index_n_heads: int = 32
    index_head_dim: int = 128
    index_topk: int = 2048
    index_kpool: int = 16
    linear_num_heads: int = 64
    linear_head_dim: int = 128
    linear_conv_kernel_dim: int = 4
    linear_lower_bound: float = -5.0
    max_position_embeddings: int = 1_048_576
    num_nextn_predict_layers: int = 0
    pad_token_id: int | None = 154_820
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        _check_numbers(self)
        _check_divisibility(self)
        _check_layers(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Read a parsed `config.json`, nested or flat, released or transformers spelling.

        Raises:
            UnsupportedConfig: another family or a value this build cannot run; the message names
                the key, its value and what is supported.
        """
        defaults = {field.name: field.default for field in dataclasses.fields(cls)}
        return cls(**read_fields(raw, defaults))

    @classmethod
    def from_dir(cls, model_dir: str | Path) -> Self:
        """Read `config.json` of a model folder.

        Raises:
            UnsupportedConfig: as `from_dict`, or the file is missing or no JSON object.
        """
        path = Path(model_dir) / "config.json"
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UnsupportedConfig(f"cannot read {path}: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise UnsupportedConfig(f"{path} is not JSON: {error}") from error
        if not isinstance(raw, dict):
            raise UnsupportedConfig(f"{path} holds {type(raw).__name__}, must be a JSON object")
        return cls.from_dict(raw)

    @property
    def family(self) -> str:
        """Name of the model family."""
        return FAMILY

    @property
    def kda_layers(self) -> tuple[int, ...]:
        """Indices of the layers with linear attention."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind is LayerKind.KDA)

    @property
    def dsa_layers(self) -> tuple[int, ...]:
        """Indices of the layers with sparse attention."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind is LayerKind.DSA)

    @property
    def linear_size(self) -> int:
        """Channels of a KDA layer's q, k or v: heads x head size."""
        return self.linear_num_heads * self.linear_head_dim

    @property
    def index_pools(self) -> int:
        """Complete pools a query may select."""
        return self.index_topk // self.index_kpool

    @property
    def mtp_layers(self) -> tuple[int, ...]:
        """Indices of the draft layers behind the text model; their tensors are skipped."""
        first = self.num_hidden_layers
        return tuple(range(first, first + self.num_nextn_predict_layers))


def _check_numbers(config: Glm5NextConfig) -> None:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.type == "int" or (field.name == "pad_token_id" and value is not None):
            least = 0 if field.name in _MAY_BE_ZERO else 1
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UnsupportedConfig(
                    f"{field.name} is {value!r}, must be an integer of at least {least}"
                )
    for name in _POSITIVE_FLOATS:
        value = getattr(config, name)
        if not _is_number(value) or value <= 0:
            raise UnsupportedConfig(f"{name} is {value!r}, must be a positive number")
    bound = config.linear_lower_bound
    if not _is_number(bound) or not -5.0 <= bound < 0:
        raise UnsupportedConfig(
            f"linear_lower_bound is {bound!r}, must lie in [-5, 0): the chunk form of the decay "
            f"would overflow float32 below -5, and no bound is another architecture"
        )
    if not isinstance(config.norm_topk_prob, bool):
        raise UnsupportedConfig(f"norm_topk_prob is {config.norm_topk_prob!r}, must be a boolean")
    if config.dtype not in DTYPES:
        raise UnsupportedConfig(f"dtype is {config.dtype!r}: known: {', '.join(DTYPES)}")
    for token_id in config.eos_token_ids:
        if not isinstance(token_id, int) or not 0 <= token_id < config.vocab_size:
            raise UnsupportedConfig(
                f"eos_token_id {token_id!r} is outside the vocabulary of {config.vocab_size}"
            )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_divisibility(config: Glm5NextConfig) -> None:
    for name, divisor_name in (("index_topk", "index_kpool"), ("n_routed_experts", "n_group")):
        value, divisor = getattr(config, name), getattr(config, divisor_name)
        if value % divisor:
            raise UnsupportedConfig(
                f"{name} ({value}) is no multiple of {divisor_name} ({divisor})"
            )
    if config.topk_group > config.n_group:
        raise UnsupportedConfig(
            f"topk_group ({config.topk_group}) is larger than n_group ({config.n_group})"
        )
    selectable = config.n_routed_experts // config.n_group * config.topk_group
    if config.num_experts_per_tok > selectable:
        raise UnsupportedConfig(
            f"num_experts_per_tok ({config.num_experts_per_tok}) is larger than the "
            f"{selectable} experts of the groups kept"
        )
    if config.linear_conv_kernel_dim < 2:
        raise UnsupportedConfig(
            f"linear_conv_kernel_dim is {config.linear_conv_kernel_dim}, must be at least 2"
        )


def _check_layers(config: Glm5NextConfig) -> None:
    for name in ("layer_types", "mlp_layer_types", "indexer_types"):
        if len(getattr(config, name)) != config.num_hidden_layers:
            raise UnsupportedConfig(
                f"{name} has {len(getattr(config, name))} entries, must have one per layer "
                f"({config.num_hidden_layers})"
            )
    for layer in config.dsa_layers:
        if config.indexer_types[layer] is IndexerKind.FULL:
            continue
        before = layer - 1
        if before not in config.dsa_layers or config.indexer_types[before] is not IndexerKind.FULL:
            raise UnsupportedConfig(
                f"indexer_types[{layer}] is 'shared', but layer {before} is no sparse-attention "
                f"layer with a full indexer"
            )
