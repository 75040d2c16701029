"""The released GLM-5.3-Flash configuration: the values that shape the text model."""

from typing import Any

NUM_LAYERS = 45
DSA_LAYERS = tuple(range(3, NUM_LAYERS, 4))


def released_config() -> dict[str, Any]:
    """A fresh copy of the released `config.json`, without its list of unconverted modules."""
    kda_layers = [i for i in range(NUM_LAYERS) if i not in DSA_LAYERS]
    text = {
        "model_type": "glm5_next_text",
        "vocab_size": 154880,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 256,
        "qk_rope_head_dim": 0,
        "qk_head_dim": 256,
        "v_head_dim": 256,
        "head_dim": 0,
        "mla_use_nope": True,
        "n_routed_experts": 288,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "moe_router_dtype": "float32",
        "first_k_dense_replace": 3,
        "mlp_layer_types": ["dense"] * 3 + ["sparse"] * 42,
        "swiglu_limit": 10.0,
        "hc_mult": 4,
        "hc_eps": 1e-06,
        "hc_sinkhorn_iters": 20,
        "mhc": True,
        "rms_norm_eps": 1e-05,
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 2048,
        "index_kpool": 4,
        "index_kpool_always_select_tail": True,
        "index_kpool_compress": True,
        "indexer_types": ["full"] * NUM_LAYERS,
        "index_share_for_mtp_iteration": True,
        "indexer_rope_interleave": True,
        "layer_types": [
            "deepseek_sparse_attention" if i in DSA_LAYERS else "linear_attention"
            for i in range(NUM_LAYERS)
        ],
        "linear_attn_config": {
            "num_heads": 64,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "gate_lower_bound": -5.0,
            "kda_layers": kda_layers,
            "full_attn_layers": list(DSA_LAYERS),
        },
        "max_position_embeddings": 1048576,
        "num_nextn_predict_layers": 1,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "eos_token_id": [154820, 154827, 154829],
        "pad_token_id": 154820,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    return {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "text_config": text,
        "vision_config": {"depth": 24, "hidden_size": 1024, "model_type": "glm5_next_vision"},
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "weight_block_size": [128, 128],
            "activation_scheme": "dynamic",
        },
        "image_token_id": 154854,
        "tie_word_embeddings": False,
        "transformers_version": "5.16.0",
    }
