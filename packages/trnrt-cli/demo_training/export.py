"""Turns a training checkpoint into the folder that ships: released names, FP8 blocks, bf16 rest."""

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from demo_training.model import DemoModel
from demo_training.render import MODEL_DIR
from demo_training.shape import ModelShape, to_config, to_generation_config

BLOCK = 128
FP8_MAX = 448.0
PREFIX = "model.language_model."

# What the release stores in FP8: the MLA projections but kv_b, and every feed-forward matrix.
_FP8_PARTS = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "mlp.")
_FLOAT32_PARTS = ("A_log", "dt_bias", "_hc.base", "_hc.scale", "e_score_correction_bias")


def is_fp8(name: str, shape: ModelShape) -> bool:
    """Whether the release keeps this tensor, named as in the training model, in FP8."""
    if name.endswith("self_attn.o_proj.weight"):
        return shape.is_dsa(int(name.split(".")[1]))
    return any(part in name for part in _FP8_PARTS) and ".mlp.gate." not in name


def released_name(name: str) -> str:
    name = name.replace("attn_hc.", "hc_attn_").replace("ffn_hc.", "hc_ffn_")
    return name if name.startswith("lm_head") else PREFIX + name


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round to e4m3 with one float32 scale for each 128x128 block; partial blocks at the edges."""
    rows, columns = weight.shape
    scales = torch.empty(-(-rows // BLOCK), -(-columns // BLOCK))
    codes = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = slice(i * BLOCK, (i + 1) * BLOCK), slice(j * BLOCK, (j + 1) * BLOCK)
            scales[i, j] = weight[at].abs().max().clamp_min(1e-12) / FP8_MAX
            codes[at] = (weight[at] / scales[i, j]).to(torch.float8_e4m3fn)
    return codes, scales


def dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    full = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return codes.float() * full[: codes.shape[0], : codes.shape[1]]


def to_released(state: dict[str, Tensor], shape: ModelShape) -> dict[str, Tensor]:
    """Spell and round the parameters of the training model as the release does."""
    released: dict[str, Tensor] = {}
    for name, tensor in _unstacked(state).items():
        target = released_name(name)
        if is_fp8(name, shape):
            codes, scales = quantise(tensor)
            released[target] = codes
            released[target.removesuffix("weight") + "weight_scale_inv"] = scales
        elif any(part in name for part in _FLOAT32_PARTS):
            released[target] = tensor.float().contiguous()
        else:
            released[target] = tensor.to(torch.bfloat16).contiguous()
    return released


def _unstacked(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Give every expert its own tensors, as files have them."""
    flat: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if ".mlp.experts." not in name:
            flat[name] = tensor
            continue
        stem, matrix = name.rsplit(".", 1)
        flat |= {f"{stem}.{e}.{matrix}.weight": part for e, part in enumerate(tensor)}
    return flat


def load_released(folder: Path, shape: ModelShape) -> DemoModel:
    """Read a shipped folder back into the training model, in float32, ready to evaluate."""
    tensors = load_file(folder / "model.safetensors")
    model = DemoModel(shape).eval()
    state: dict[str, Tensor] = {}
    for name, current in model.state_dict().items():
        if ".mlp.experts." in name:
            stem, matrix = name.rsplit(".", 1)
            parts = [f"{stem}.{e}.{matrix}.weight" for e in range(len(current))]
            state[name] = torch.stack([_read(tensors, released_name(part)) for part in parts])
        else:
            state[name] = _read(tensors, released_name(name))
    model.load_state_dict(state)
    return model


def _read(tensors: dict[str, Tensor], name: str) -> Tensor:
    scales = tensors.get(name.removesuffix("weight") + "weight_scale_inv")
    return tensors[name].float() if scales is None else dequantise(tensors[name], scales)


def export(state: dict[str, Tensor], folder: Path, shape: ModelShape) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    weights_path = folder / "model.safetensors"
    save_file(to_released(state, shape), weights_path, {"format": "pt"})
    weights_path.chmod(0o644)
    for name, content in (
        ("config.json", to_config(shape)),
        ("generation_config.json", to_generation_config()),
    ):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--out", type=Path, default=MODEL_DIR)
    arguments = parser.parse_args()
    state = torch.load(arguments.checkpoint, weights_only=True)["model"]
    export(state, arguments.out, ModelShape())


if __name__ == "__main__":
    main()
