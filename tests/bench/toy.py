"""The 53M toy of the speed goals: a checkpoint in the released layout, for us and transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.inventory import inventory

NUM_LAYERS = 12
TEXT_CONFIG: dict[str, Any] = {
    "model_type": "glm5_next_text",
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "moe_intermediate_size": 64,
    "num_hidden_layers": NUM_LAYERS,
    "layer_types": [
        "deepseek_sparse_attention" if layer % 4 == 3 else "linear_attention"
        for layer in range(NUM_LAYERS)
    ],
    "mlp_layer_types": ["dense"] * 3 + ["sparse"] * (NUM_LAYERS - 3),
    "n_routed_experts": 32,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "q_lora_rank": 256,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 0,
    "v_head_dim": 64,
    "index_n_heads": 8,
    "index_head_dim": 64,
    "index_topk": 512,
    "index_kpool": 4,
    "linear_attn_config": {
        "num_heads": 8,
        "head_dim": 64,
        "short_conv_kernel_size": 4,
        "gate_lower_bound": -5.0,
    },
    "max_position_embeddings": 65_536,
    "pad_token_id": 0,
}
# The smallest tower transformers builds; text never touches it.
VISION_CONFIG: dict[str, Any] = {
    "model_type": "glm5_next_vision",
    "depth": 1,
    "hidden_size": 32,
    "num_heads": 2,
    "intermediate_size": 32,
    "out_hidden_size": 512,
    "projection_intermediate_size": 32,
    "patch_size": 14,
    "image_size": 28,
}


def write_toy(folder: Path) -> Path:
    """Write the checkpoint: seed 0, float32, matrices normal with std fan_in^-0.5."""
    folder.mkdir(parents=True, exist_ok=True)
    raw = {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "dtype": "float32",
        "tie_word_embeddings": False,
        "text_config": TEXT_CONFIG,
        "vision_config": VISION_CONFIG,
    }
    (folder / "config.json").write_text(json.dumps(raw, indent=1))
    generator = torch.Generator().manual_seed(0)
    tensors = {
        part.hf_name: _value(held.name, part.shape, generator)
        for held in inventory(Glm5NextConfig.from_dict(raw))
        for part in held.parts
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _value(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    if name.endswith("norm"):
        return torch.ones(shape)
    noise = torch.randn(shape, generator=generator)
    if name.endswith("hc_fn"):
        return 0.02 * noise
    return noise * (shape[-1] ** -0.5 if len(shape) > 1 else 0.1)
