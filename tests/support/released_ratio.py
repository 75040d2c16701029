"""The released model with every width, head count and expert count divided by 8, twelve layers.

Three KDA layers before each sparse one, two attention heads to an index head, pools of 4 tokens and
2,048 selected tokens, as released.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trnrt_kernels.models.glm5_next.caches import CacheGeometry, Caches
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.inputs import DecodeInputs
from trnrt_kernels.serving import PAGE_SIZE

TEXT_CHANGES: dict[str, Any] = {
    "vocab_size": 19_360,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "moe_intermediate_size": 256,
    "num_hidden_layers": 12,
    "layer_types": [*["linear_attention"] * 3, "deepseek_sparse_attention"] * 3,
    "mlp_layer_types": [*["dense"] * 3, *["sparse"] * 9],
    "n_routed_experts": 36,
    "num_experts_per_tok": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "q_lora_rank": 192,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "index_n_heads": 4,
    "index_head_dim": 16,
    "index_topk": 2048,
    "linear_attn_config": {
        "num_heads": 8,
        "head_dim": 16,
        "short_conv_kernel_size": 4,
        "gate_lower_bound": -5.0,
    },
    "max_position_embeddings": 1_048_576,
    "num_nextn_predict_layers": 0,
}


def filled_caches(config: Glm5NextConfig, num_tokens: int) -> Caches:
    """Caches of one sequence, random index keys in every page; their values cost no time."""
    num_pages = num_tokens // PAGE_SIZE
    geometry = CacheGeometry(
        num_pages=num_pages + 1, page_size=PAGE_SIZE, num_state_slots=2, num_scratch=1
    )
    caches = Caches.allocate(config, geometry, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    for layer in caches.layers:
        if "pool_keys" in layer:
            layer["pool_keys"].normal_(generator=generator)
    return caches


def decode_inputs(num_tokens: int, *, num_pages: int) -> DecodeInputs:
    """One token at the end of a sequence whose neighbours are no neighbours in the cache."""
    order = torch.randperm(num_pages, generator=torch.Generator().manual_seed(1)) + 1
    table: Tensor = order[: num_tokens // PAGE_SIZE].unsqueeze(0)
    return DecodeInputs(
        token_ids_B=torch.tensor([7]),
        positions_B=torch.tensor([num_tokens - 2]),
        state_slots_B=torch.tensor([1]),
        block_table_BP=table,
        is_live_B=torch.tensor([True]),
    )
