"""Every spelling of the config reads the same; what cannot be served is refused by name."""

import copy
import json

import pytest

from support.released import released_config
from trnrt_kernels.errors import UnsupportedConfig
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.kinds import FfnKind, IndexerKind, LayerKind

RELEASED_DSA = (3, 7, 11, 15, 19, 23, 27, 31, 35, 39, 43)


def with_text(**changes):
    raw = released_config()
    raw["text_config"] |= changes
    return raw


def test_released_config_has_the_published_plan():
    config = Glm5NextConfig.from_dict(released_config())
    assert config.dsa_layers == RELEASED_DSA
    assert len(config.kda_layers) == 34
    assert config.mlp_layer_types == (FfnKind.DENSE,) * 3 + (FfnKind.SPARSE,) * 42
    assert set(config.indexer_types) == {IndexerKind.FULL}
    assert (config.index_kpool, config.index_pools) == (4, 512)
    assert config.linear_lower_bound == -5.0
    assert config.mtp_layers == (45,)
    assert config.eos_token_ids == (154820, 154827, 154829)
    assert config.dtype == "bfloat16"


@pytest.mark.parametrize(
    "name", ["deepseek_sparse_attention", "full_attention", "indexed_attention"]
)
def test_all_names_of_sparse_attention_mean_the_same(name):
    raw = released_config()
    kinds = [
        name if kind == "deepseek_sparse_attention" else kind
        for kind in raw["text_config"]["layer_types"]
    ]
    assert Glm5NextConfig.from_dict(with_text(layer_types=kinds)) == Glm5NextConfig.from_dict(raw)


def test_flat_config_equals_nested():
    raw = released_config()
    assert Glm5NextConfig.from_dict(raw["text_config"]) == Glm5NextConfig.from_dict(raw)


def test_flat_config_with_the_top_level_model_type_equals_nested():
    raw = released_config()
    flat = raw["text_config"] | {"model_type": "glm5_next"}
    assert Glm5NextConfig.from_dict(flat) == Glm5NextConfig.from_dict(raw)


def test_flattened_linear_keys_equal_the_nested_group():
    raw = released_config()
    flat = copy.deepcopy(raw)
    group = flat["text_config"].pop("linear_attn_config")
    flat["text_config"] |= {
        "linear_num_heads": group["num_heads"],
        "linear_head_dim": group["head_dim"],
        "linear_conv_kernel_dim": group["short_conv_kernel_size"],
        "linear_lower_bound": group["gate_lower_bound"],
    }
    assert Glm5NextConfig.from_dict(flat) == Glm5NextConfig.from_dict(raw)


def test_missing_keys_take_the_transformers_defaults():
    config = Glm5NextConfig.from_dict({"model_type": "glm5_next", "text_config": {}})
    assert config.dsa_layers == RELEASED_DSA
    assert config.mlp_layer_types[:4] == (FfnKind.DENSE,) * 3 + (FfnKind.SPARSE,)
    assert config.index_kpool == 16
    assert config.eos_token_ids == ()
    assert config.pad_token_id == 154820
    assert config.mtp_layers == ()


def test_missing_lower_bound_is_the_safe_gate():
    group = released_config()["text_config"]["linear_attn_config"]
    for changed in (group | {"gate_lower_bound": None}, group | {"safe_gate": True}):
        config = Glm5NextConfig.from_dict(with_text(linear_attn_config=changed))
        assert config.linear_lower_bound == -5.0


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"index_topk_pattern": "FFSF"}, "ffsf"),
        ({"index_topk_pattern": ["full", "full", "shared", "full"]}, "ffsf"),
        ({"index_topk_freq": 2}, "ffsf"),
        ({}, "ffff"),
    ],
)
def test_indexer_types_follow_pattern_or_frequency(keys, expected):
    text = {
        "model_type": "glm5_next_text",
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", *["indexed_attention"] * 3],
    }
    config = Glm5NextConfig.from_dict(text | keys)
    assert "".join(kind.value[0] for kind in config.indexer_types) == expected


@pytest.mark.parametrize("model_type", ["glm4_moe", "kimi_linear", None])
def test_other_family_is_refused_naming_the_supported_one(model_type):
    raw = {"model_type": model_type} if model_type else {}
    with pytest.raises(UnsupportedConfig, match=f"{model_type}.*supported families: glm5_next"):
        Glm5NextConfig.from_dict(raw)


def test_other_family_inside_text_config_is_refused():
    with pytest.raises(UnsupportedConfig, match=r"qwen3.*supported families: glm5_next"):
        Glm5NextConfig.from_dict(with_text(model_type="qwen3"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"qk_rope_head_dim": 64}, "qk_rope_head_dim is 64"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"index_kpool_always_select_tail": False}, "index_kpool_always_select_tail is False"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings is True"),
        ({"num_key_value_heads": 8}, "num_key_value_heads is 8"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"hidden_size": "4096"}, "hidden_size is '4096'"),
        ({"num_hidden_layers": None}, "num_hidden_layers is None"),
        ({"q_lora_rank": None}, "q_lora_rank is None"),
        ({"swiglu_limit": None}, "swiglu_limit is None"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps is nan"),
        ({"index_topk": 2050}, "index_topk .2050. is no multiple of index_kpool"),
        ({"n_group": 7}, "n_routed_experts .288. is no multiple of n_group"),
        ({"n_group": 2, "topk_group": 3}, "topk_group .3."),
        ({"num_experts_per_tok": 400}, "num_experts_per_tok .400."),
        ({"layer_types": ["linear_attention"]}, "layer_types has 1 entries"),
        ({"layer_types": ["sliding_attention"] * 45}, "layer_types.0. is 'sliding_attention'"),
        ({"mlp_layer_types": ["moe"] * 45}, "mlp_layer_types.0. is 'moe'"),
        ({"first_k_dense_replace": 4}, "first_k_dense_replace = 4"),
        ({"linear_head_dim": 64}, "linear_attn_config.head_dim = 128, linear_head_dim = 64"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"eos_token_id": 154880}, "eos_token_id 154880"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_value_that_cannot_be_served_is_named(changes, named):
    with pytest.raises(UnsupportedConfig, match=named):
        Glm5NextConfig.from_dict(with_text(**changes))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kda_layers": [0, 1]}, "kda_layers"),
        ({"full_attn_layers": [4]}, "full_attn_layers"),
        ({"gate_lower_bound": -8.0}, "linear_lower_bound is -8.0"),
        ({"gate_lower_bound": None, "safe_gate": False}, "linear_lower_bound is None"),
    ],
)
def test_linear_attention_group_is_checked(changes, named):
    group = released_config()["text_config"]["linear_attn_config"] | changes
    with pytest.raises(UnsupportedConfig, match=named):
        Glm5NextConfig.from_dict(with_text(linear_attn_config=group))


def with_shared_indexers(*shared):
    kinds = ["linear_attention", *["deepseek_sparse_attention"] * 3, "linear_attention"]
    return {
        "model_type": "glm5_next_text",
        "num_hidden_layers": 5,
        "layer_types": kinds,
        "indexer_types": ["shared" if i in shared else "full" for i in range(5)],
    }


@pytest.mark.parametrize("shared", [0, 2, 3])
def test_shared_indexer_after_a_full_one_or_on_a_linear_layer_is_legal(shared):
    config = Glm5NextConfig.from_dict(with_shared_indexers(shared))
    assert config.layer_types[0] is LayerKind.KDA
    assert config.indexer_types[shared] is IndexerKind.SHARED


@pytest.mark.parametrize(("shared", "named"), [((2, 3), 3), ((1,), 1)])
def test_shared_indexer_without_a_full_one_in_the_layer_before_is_refused(shared, named):
    with pytest.raises(UnsupportedConfig, match=rf"indexer_types\[{named}\] is 'shared'"):
        Glm5NextConfig.from_dict(with_shared_indexers(*shared))


@pytest.mark.parametrize("key", ["quant_method", "fmt", "weight_block_size"])
def test_other_quantization_is_refused(key):
    raw = released_config()
    raw["quantization_config"][key] = "other"
    with pytest.raises(UnsupportedConfig, match=f"quantization_config.{key} is 'other'"):
        Glm5NextConfig.from_dict(raw)


@pytest.mark.parametrize("value", [5, "abc", [1, 2], {"a": 1}, True])
@pytest.mark.parametrize(
    "key",
    [
        *("layer_types", "mlp_layer_types", "indexer_types", "index_topk_pattern"),
        *("first_k_dense_replace", "linear_attn_config"),
    ],
)
def test_value_of_another_type_is_refused_by_name(key, value):
    text = released_config()["text_config"]
    if (key, value) in (("first_k_dense_replace", 5), ("linear_attn_config", {"a": 1})):
        value = "other"
    text.pop("indexer_types", None)
    with pytest.raises(UnsupportedConfig, match=key):
        Glm5NextConfig.from_dict({**released_config(), "text_config": {**text, key: value}})


@pytest.mark.parametrize("value", [5, "fp8", [1], True])
def test_quantization_of_another_type_is_refused(value):
    with pytest.raises(UnsupportedConfig, match="quantization_config"):
        Glm5NextConfig.from_dict({**released_config(), "quantization_config": value})


@pytest.mark.parametrize("content", ["{", "[]", None, "[" * 100_000])
def test_unreadable_file_is_named(tmp_path, content):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(UnsupportedConfig, match=r"config\.json"):
        Glm5NextConfig.from_dir(tmp_path)


def test_from_dir_reads_what_from_dict_reads(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(released_config()))
    assert Glm5NextConfig.from_dir(tmp_path) == Glm5NextConfig.from_dict(released_config())
