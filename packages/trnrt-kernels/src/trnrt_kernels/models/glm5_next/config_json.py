"""Read the spellings in which `glm5_next` configs exist into one flat set of fields.

Three dialects meet here: the released `config.json` (`text_config` with a nested
`linear_attn_config`), what transformers writes (`text_config` with flattened `linear_*` keys) and
a text-only config with the same keys at the top level. Layer types have three names for sparse
attention. A missing key takes transformers' default; a value the model code cannot honour is
refused by name, never ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from trnrt_kernels.errors import UnsupportedConfig
from trnrt_kernels.models.glm5_next.kinds import FfnKind, IndexerKind, LayerKind

K = TypeVar("K", LayerKind, FfnKind, IndexerKind)

FAMILY = "glm5_next"
MODEL_TYPES = (FAMILY, f"{FAMILY}_text")

LAYER_TYPE_NAMES = {
    "linear_attention": LayerKind.KDA,
    "deepseek_sparse_attention": LayerKind.DSA,
    "full_attention": LayerKind.DSA,
    "indexed_attention": LayerKind.DSA,
}

# Keys that choose between architectures: only one value of each is this architecture.
FIXED_VALUES: dict[str, Any] = {
    "attention_bias": False,
    "hidden_act": "silu",
    "index_kpool_always_select_tail": True,
    "index_kpool_compress": True,
    "mhc": True,
    "mla_use_nope": True,
    "moe_router_dtype": "float32",
    "qk_rope_head_dim": 0,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_method": "noaux_tc",
}
FIXED_QUANTIZATION: dict[str, Any] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}

# our field -> its names inside `linear_attn_config`
LINEAR_KEYS = {
    "linear_num_heads": ("num_heads",),
    "linear_head_dim": ("head_dim",),
    "linear_conv_kernel_dim": ("short_conv_kernel_size",),
    "linear_lower_bound": ("gate_lower_bound", "lower_bound"),
}

PLAIN_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "v_head_dim",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
    "norm_topk_prob",
    "routed_scaling_factor",
    "swiglu_limit",
    "hc_mult",
    "hc_eps",
    "hc_sinkhorn_iters",
    "rms_norm_eps",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "index_kpool",
    "max_position_embeddings",
    "num_nextn_predict_layers",
    "pad_token_id",
)


def read_fields(raw: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a parsed `config.json` into keyword arguments of `Glm5NextConfig`.

    Args:
        raw: the parsed file, nested or flat.
        defaults: the config's own default values, by field name.

    Raises:
        UnsupportedConfig: another family, or a value this architecture does not have.
    """
    text = _text_config(raw)
    _refuse_other_architectures(raw, text)
    fields = {name: text[name] for name in PLAIN_FIELDS if name in text}
    fields |= _linear_fields(text)
    num_layers = fields.get("num_hidden_layers", defaults["num_hidden_layers"])
    if isinstance(num_layers, bool) or not isinstance(num_layers, int) or num_layers < 1:
        raise UnsupportedConfig(f"num_hidden_layers is {num_layers!r}, must be a positive integer")
    fields["layer_types"] = _layer_types(text, num_layers)
    fields["mlp_layer_types"] = _mlp_layer_types(text, num_layers)
    fields["indexer_types"] = _indexer_types(text, num_layers)
    _check_layer_lists(text, fields["layer_types"])
    fields["eos_token_ids"] = _token_ids(text.get("eos_token_id", raw.get("eos_token_id")))
    fields["dtype"] = _dtype_name(text, raw)
    return fields


def _text_config(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text part of the config, after the family has been checked."""
    nested = raw.get("text_config")
    if nested is not None and not isinstance(nested, Mapping):
        raise UnsupportedConfig(f"text_config is {type(nested).__name__}, must be an object")
    text = raw if nested is None else nested
    found = [config["model_type"] for config in (raw, text) if config.get("model_type")]
    foreign = [name for name in found if name not in MODEL_TYPES] if found else [None]
    if foreign:
        raise UnsupportedConfig(
            f"model_type is {foreign[0]!r}: supported families: {FAMILY} "
            f"(model_type {' or '.join(MODEL_TYPES)})"
        )
    return text


def _refuse_other_architectures(raw: Mapping[str, Any], text: Mapping[str, Any]) -> None:
    for key, required in FIXED_VALUES.items():
        for config in (text, raw):
            if key in config and config[key] != required:
                raise UnsupportedConfig(
                    f"{key} is {config[key]!r}: {FAMILY} is served only with {required!r}"
                )
    heads = text.get("num_attention_heads")
    if text.get("num_key_value_heads", heads) != heads:
        raise UnsupportedConfig(
            f"num_key_value_heads is {text['num_key_value_heads']!r}: must equal "
            f"num_attention_heads ({heads!r}), the cache holds one latent per token"
        )
    quantization = _mapping(raw, "quantization_config") or _mapping(text, "quantization_config")
    for key, required in FIXED_QUANTIZATION.items():
        if quantization and quantization.get(key, required) != required:
            raise UnsupportedConfig(
                f"quantization_config.{key} is {quantization[key]!r}: only {required!r} is served; "
                f"use a checkpoint in FP8 blocks or without quantization"
            )


def _linear_fields(text: Mapping[str, Any]) -> dict[str, Any]:
    """KDA dimensions from `linear_attn_config` or the flattened keys, which must agree."""
    nested = _mapping(text, "linear_attn_config")
    fields: dict[str, Any] = {}
    for field, nested_names in LINEAR_KEYS.items():
        found = {f"linear_attn_config.{n}": nested[n] for n in nested_names if n in nested}
        if field in text:
            found[field] = text[field]
        if len({repr(value) for value in found.values()}) > 1:
            listed = ", ".join(f"{name} = {value!r}" for name, value in found.items())
            raise UnsupportedConfig(f"the config contradicts itself: {listed}")
        if found:
            fields[field] = next(iter(found.values()))
    if fields.get("linear_lower_bound", 0.0) is None and nested.get("safe_gate", True):
        del fields["linear_lower_bound"]
    return fields


def _layer_types(text: Mapping[str, Any], num_layers: int) -> tuple[LayerKind, ...]:
    names = text.get("layer_types")
    if names is None:
        every_fourth = (LayerKind.KDA, LayerKind.KDA, LayerKind.KDA, LayerKind.DSA)
        return tuple(every_fourth[i % 4] for i in range(num_layers))
    return _each_layer("layer_types", names, LAYER_TYPE_NAMES, num_layers)


def _mlp_layer_types(text: Mapping[str, Any], num_layers: int) -> tuple[FfnKind, ...]:
    names = text.get("mlp_layer_types")
    num_dense = _integer(text, "first_k_dense_replace")
    if names is not None:
        kinds = _each_layer("mlp_layer_types", names, {k.value: k for k in FfnKind}, num_layers)
        leading = next((i for i, k in enumerate(kinds) if k is not FfnKind.DENSE), num_layers)
        if num_dense is not None and min(num_dense, num_layers) != leading:
            raise UnsupportedConfig(
                f"the config contradicts itself: first_k_dense_replace = {num_dense}, but "
                f"mlp_layer_types begins with {leading} dense layers"
            )
        return kinds
    num_dense = 3 if num_dense is None else num_dense
    return tuple(FfnKind.DENSE if i < num_dense else FfnKind.SPARSE for i in range(num_layers))


def _indexer_types(text: Mapping[str, Any], num_layers: int) -> tuple[IndexerKind, ...]:
    """The list itself, else transformers' pattern ("FFSF") or its every-n-th-layer rule."""
    key = "indexer_types" if text.get("indexer_types") is not None else "index_topk_pattern"
    names = text.get(key)
    if isinstance(names, str) and key == "index_topk_pattern":
        letters = {"F": IndexerKind.FULL, "S": IndexerKind.SHARED}
        return _each_layer(key, names, letters, num_layers)
    if names is None:
        every = max(_integer(text, "index_topk_freq", 1), 1)
        offset = _integer(text, "index_skip_topk_offset", 2)
        full = [max(i - offset + 1, 0) % every == 0 for i in range(num_layers)]
        return tuple(IndexerKind.FULL if is_full else IndexerKind.SHARED for is_full in full)
    return _each_layer(key, names, {k.value: k for k in IndexerKind}, num_layers)


def _mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise UnsupportedConfig(f"{key} is {value!r}, must be an object")
    return value or {}


def _integer(config: Mapping[str, Any], key: str, default: int | None = None) -> Any:
    value = config.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise UnsupportedConfig(f"{key} is {value!r}, must be an integer")
    return default if value is None else value


def _each_layer(key: str, names: Any, known: Mapping[str, K], num_layers: int) -> tuple[K, ...]:
    if not isinstance(names, list | tuple | str):
        raise UnsupportedConfig(f"{key} is {names!r}, must be a list with one entry per layer")
    if len(names) != num_layers:
        raise UnsupportedConfig(
            f"{key} has {len(names)} entries, must have one per layer ({num_layers})"
        )
    for index, name in enumerate(names):
        if not isinstance(name, str) or name not in known:
            raise UnsupportedConfig(f"{key}[{index}] is {name!r}: known: {', '.join(known)}")
    return tuple(known[name] for name in names)


def _check_layer_lists(text: Mapping[str, Any], kinds: tuple[LayerKind, ...]) -> None:
    """`kda_layers` and `full_attn_layers` repeat `layer_types`; refuse a difference."""
    nested = _mapping(text, "linear_attn_config")
    for key, kind in (("kda_layers", LayerKind.KDA), ("full_attn_layers", LayerKind.DSA)):
        if nested.get(key) is None:
            continue
        expected = [index for index, found in enumerate(kinds) if found is kind]
        if not isinstance(nested[key], list | tuple) or list(nested[key]) != expected:
            raise UnsupportedConfig(
                f"linear_attn_config.{key} is {nested[key]}, but layer_types says {expected}"
            )


def _token_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _dtype_name(text: Mapping[str, Any], raw: Mapping[str, Any]) -> str:
    for config in (text, raw):
        for key in ("dtype", "torch_dtype"):
            if config.get(key) is not None:
                return str(config[key]).removeprefix("torch.")
    return "bfloat16"
