"""Sizes of the demo model, as plain numbers and as the config.json it ships with."""

from dataclasses import dataclass
from typing import Any

from demo_training.tokenizer import ADDED_TOKENS, EOS_TOKENS, PAD_TOKEN, VOCAB_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """GLM-5.3-Flash in miniature: 8 layers KKKD KKKD, 2 dense and 6 MoE feed-forwards."""

    vocab_size: int = VOCAB_SIZE
    hidden_size: int = 128
    num_layers: int = 8
    num_dense_layers: int = 2
    intermediate_size: int = 256
    moe_intermediate_size: int = 128
    num_experts: int = 8
    experts_per_token: int = 2
    routed_scale: float = 2.5
    swiglu_limit: float = 10.0
    kda_heads: int = 4
    kda_head_dim: int = 32
    conv_kernel: int = 4
    gate_floor: float = -5.0
    mla_heads: int = 4
    mla_head_dim: int = 32
    q_lora_rank: int = 128
    kv_lora_rank: int = 128
    index_heads: int = 4
    index_head_dim: int = 32
    index_pool: int = 4
    index_topk: int = 128
    streams: int = 4
    sinkhorn_steps: int = 20
    hc_eps: float = 1e-6
    norm_eps: float = 1e-5
    max_positions: int = 8192

    def is_dsa(self, layer: int) -> bool:
        return layer % 4 == 3

    def is_dense(self, layer: int) -> bool:
        return layer < self.num_dense_layers


def added_token_id(token: str) -> int:
    return VOCAB_SIZE - len(ADDED_TOKENS) + ADDED_TOKENS.index(token)


def to_config(shape: ModelShape) -> dict[str, Any]:
    """config.json with the keys of the released checkpoint."""
    layers = range(shape.num_layers)
    eos = [added_token_id(token) for token in EOS_TOKENS]
    text = {
        "model_type": "glm5_next_text",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "bfloat16",
        "eos_token_id": eos,
        "first_k_dense_replace": shape.num_dense_layers,
        "hc_eps": shape.hc_eps,
        "hc_mult": shape.streams,
        "hc_sinkhorn_iters": shape.sinkhorn_steps,
        "head_dim": 0,
        "hidden_act": "silu",
        "hidden_size": shape.hidden_size,
        "index_head_dim": shape.index_head_dim,
        "index_kpool": shape.index_pool,
        "index_kpool_always_select_tail": True,
        "index_kpool_compress": True,
        "index_n_heads": shape.index_heads,
        "index_topk": shape.index_topk,
        "indexer_rope_interleave": True,
        "indexer_types": ["full" for _ in layers],
        "intermediate_size": shape.intermediate_size,
        "kv_lora_rank": shape.kv_lora_rank,
        "layer_types": [
            "deepseek_sparse_attention" if shape.is_dsa(i) else "linear_attention" for i in layers
        ],
        "linear_attn_config": {
            "full_attn_layers": [i for i in layers if shape.is_dsa(i)],
            "gate_lower_bound": shape.gate_floor,
            "head_dim": shape.kda_head_dim,
            "kda_layers": [i for i in layers if not shape.is_dsa(i)],
            "num_heads": shape.kda_heads,
            "short_conv_kernel_size": shape.conv_kernel,
        },
        "max_position_embeddings": shape.max_positions,
        "mhc": True,
        "mla_use_nope": True,
        "mlp_layer_types": ["dense" if shape.is_dense(i) else "sparse" for i in layers],
        "moe_intermediate_size": shape.moe_intermediate_size,
        "moe_router_dtype": "float32",
        "n_group": 1,
        "n_routed_experts": shape.num_experts,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "num_attention_heads": shape.mla_heads,
        "num_experts_per_tok": shape.experts_per_token,
        "num_hidden_layers": shape.num_layers,
        "num_key_value_heads": shape.mla_heads,
        "num_nextn_predict_layers": 0,
        "pad_token_id": added_token_id(PAD_TOKEN),
        "q_lora_rank": shape.q_lora_rank,
        "qk_head_dim": shape.mla_head_dim,
        "qk_nope_head_dim": shape.mla_head_dim,
        "qk_rope_head_dim": 0,
        "rms_norm_eps": shape.norm_eps,
        "routed_scaling_factor": shape.routed_scale,
        "scoring_func": "sigmoid",
        "swiglu_limit": shape.swiglu_limit,
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "v_head_dim": shape.mla_head_dim,
        "vocab_size": shape.vocab_size,
    }
    return {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "dtype": "bfloat16",
        "tie_word_embeddings": False,
        "transformers_version": "5.16.0",
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
        },
        "image_token_id": added_token_id("<|image|>"),
        "video_token_id": added_token_id("<|video|>"),
        "text_config": text,
    }


def to_generation_config() -> dict[str, Any]:
    return {
        "eos_token_id": [added_token_id(token) for token in EOS_TOKENS],
        "pad_token_id": added_token_id(PAD_TOKEN),
        "temperature": 1.0,
        "top_p": 0.95,
        "transformers_version": "5.16.0",
    }
