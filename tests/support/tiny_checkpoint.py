"""Makes a tiny random checkpoint of the served architecture on disk, as released ones lie there.

Everything goes through the inventory, so a checkpoint made here holds exactly the tensors the
loader asks for. Values are random but tame: norm weights near one, matrices scaled by their width.
"""

from __future__ import annotations

import json
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from trnrt_kernels.common.fp8 import quantise_blocks
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.inventory import PREFIX, HeldTensor, Part, Precision, inventory

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
EOS_IDS = (1244, 1251, 1253)  # <|endoftext|>, <|user|>, <|observation|> of the demo tokenizer

TEXT_CONFIG: dict[str, Any] = {
    "model_type": "glm5_next_text",
    "vocab_size": 1280,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 0,
    "v_head_dim": 24,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "index_n_heads": 4,
    "index_head_dim": 16,
    "index_topk": 32,
    "index_kpool": 4,
    "layer_types": ["linear_attention", "deepseek_sparse_attention"] * 2,
    "mlp_layer_types": ["dense", "sparse", "sparse", "sparse"],
    "linear_attn_config": {
        "num_heads": 4,
        "head_dim": 16,
        "short_conv_kernel_size": 4,
        "gate_lower_bound": -5.0,
    },
    "max_position_embeddings": 4096,
    "num_nextn_predict_layers": 1,
    "eos_token_id": list(EOS_IDS),
    "pad_token_id": EOS_IDS[0],
}


def make_tiny_checkpoint(
    folder: Path,
    *,
    seed: int = 0,
    fp8: bool = True,
    dtype: torch.dtype = torch.bfloat16,
    num_shards: int = 2,
    tokenizer: bool = False,
    **text_changes: Any,
) -> Path:
    """Write a model folder and return it.

    Args:
        fp8: store as FP8 blocks what the release stores so.
        dtype: of everything that is neither FP8 nor always float32.
        num_shards: 1 writes `model.safetensors`, more write shards and an index.
        tokenizer: also copy the demo model's tokenizer and chat template (1,280 ids).
        text_changes: replace keys of `TEXT_CONFIG`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    raw = tiny_config(fp8=fp8, dtype=dtype, **text_changes)
    (folder / "config.json").write_text(json.dumps(raw, indent=1))
    generation = {"eos_token_id": list(EOS_IDS), "temperature": 1.0, "top_p": 0.95}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    tensors = tiny_tensors(Glm5NextConfig.from_dict(raw), seed=seed, fp8=fp8, dtype=dtype)
    write_shards(folder, tensors, num_shards)
    if tokenizer:
        demo = resources.files("trnrt_cli").joinpath("demo_model")
        for name in TOKENIZER_FILES:
            with resources.as_file(demo / name) as source:
                shutil.copyfile(source, folder / name)
    return folder


def tiny_config(
    *, fp8: bool = True, dtype: torch.dtype = torch.bfloat16, **text_changes: Any
) -> dict[str, Any]:
    """The `config.json` of a tiny checkpoint."""
    raw: dict[str, Any] = {
        "architectures": ["Glm5NextForConditionalGeneration"],
        "model_type": "glm5_next",
        "dtype": str(dtype).removeprefix("torch."),
        "text_config": TEXT_CONFIG | text_changes,
    }
    if fp8:
        raw["quantization_config"] = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "weight_block_size": [128, 128],
            "activation_scheme": "dynamic",
        }
    return raw


def tiny_tensors(
    config: Glm5NextConfig, *, seed: int = 0, fp8: bool = True, dtype: torch.dtype = torch.bfloat16
) -> dict[str, Tensor]:
    """Random checkpoint tensors by checkpoint name, a draft layer's stub included."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for held in inventory(config):
        for part in held.parts:
            value = _random_value(held, part, generator)
            if fp8 and held.precision is Precision.BLOCK_FP8:
                tensors[part.hf_name], tensors[part.scale_name] = quantise_blocks(value)
            elif held.precision is Precision.STRICT_F32:
                tensors[part.hf_name] = value
            else:
                tensors[part.hf_name] = value.to(dtype)
    for layer in config.mtp_layers:
        hidden = config.hidden_size
        eh_proj = torch.randn(hidden, 2 * hidden, generator=generator)
        tensors[f"{PREFIX}layers.{layer}.eh_proj.weight"] = eh_proj.to(dtype)
    return tensors


def _random_value(held: HeldTensor, part: Part, generator: torch.Generator) -> Tensor:
    noise = torch.randn(part.shape, generator=generator)
    name = held.name
    if name.endswith("norm"):
        return 1.0 + 0.1 * noise
    if name == "embed":
        return noise
    if name.endswith("_conv"):
        return 0.5 * noise
    if len(part.shape) >= 2:
        return noise * part.shape[-1] ** -0.5
    return 0.3 * noise


def write_shards(folder: Path, tensors: dict[str, Tensor], num_shards: int) -> None:
    """Write tensors as one file, or dealt in turn over shards with an index."""
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(num_shards):
        file_name = f"model-{shard + 1:05d}-of-{num_shards:05d}.safetensors"
        own = names[shard::num_shards]
        save_file({name: tensors[name] for name in own}, folder / file_name)
        weight_map |= dict.fromkeys(own, file_name)
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
