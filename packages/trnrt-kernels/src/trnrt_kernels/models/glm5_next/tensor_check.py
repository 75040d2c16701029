"""Match a checkpoint's tensors with the inventory: what is there, what is not, what is wrong.

The dtype of a weight is decided per tensor: it is FP8 if its data are e4m3 *and* its scale partner
exists. The config's list of unconverted modules spells other names than the files and is not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from trnrt_kernels.common.fp8 import scale_shape
from trnrt_kernels.errors import CheckpointError
from trnrt_kernels.models.checkpoint import open_checkpoint
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.inventory import (
    PREFIX,
    SCALE_SUFFIX,
    HeldTensor,
    Part,
    Precision,
    inventory,
)
from trnrt_kernels.models.safetensors_header import TensorEntry

FP8 = "F8_E4M3"
SCALE_DTYPE = "F32"
WIDE_DTYPES = ("BF16", "F32")
VISION_PREFIX = "model.visual."

# Tensors only a draft layer has; they tell it from a text layer the config forgot.
_MTP_NAMES = ("eh_proj.", "enorm.", "hnorm.", "shared_head.")
_LAYER_NAME = re.compile(re.escape(PREFIX) + r"layers\.(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class FoundTensor:
    """A held tensor and where its parts lie; a part without scale is not quantised."""

    held: HeldTensor
    parts: tuple[tuple[Part, TensorEntry, TensorEntry | None], ...]


def match_tensors(config: Glm5NextConfig, entries: Mapping[str, TensorEntry]) -> list[FoundTensor]:
    """Find every tensor of the text model.

    Raises:
        CheckpointError: tensors missing, unexpected, of a wrong shape or dtype, FP8 without scale
            or scale without FP8; each is listed by name.
    """
    findings: list[str] = []
    found: list[FoundTensor] = []
    known: set[str] = set()
    for held in inventory(config):
        parts = []
        for part in held.parts:
            known |= {part.hf_name, part.scale_name}
            entry, scale = entries.get(part.hf_name), entries.get(part.scale_name)
            findings += part_findings(held, part, entry, scale)
            if entry is not None:
                parts.append((part, entry, scale))
        found.append(FoundTensor(held, tuple(parts)))
    findings += _unexpected(config, entries, known)
    if findings:
        raise CheckpointError("the checkpoint is not what its config describes", findings)
    return found


def activation_dtype(found: list[FoundTensor]) -> str:
    """The dtype of the unquantised matrices; float32 if any of them is."""
    dtypes = {
        entry.dtype
        for tensor in found
        if tensor.held.is_matrix
        for _, entry, scale in tensor.parts
        if scale is None
    }
    return "float32" if "F32" in dtypes else "bfloat16"


def stored_dtype(model_dir: Path, config: Glm5NextConfig) -> str:
    """The activation dtype a model folder asks for; the config's word where it has no weights.

    Raises:
        CheckpointError: the weights do not fit the config.
    """
    if not any(model_dir.glob("*.safetensors*")):
        return "bfloat16" if config.dtype == "bfloat16" else "float32"
    return activation_dtype(match_tensors(config, open_checkpoint(model_dir).entries))


def part_findings(
    held: HeldTensor, part: Part, entry: TensorEntry | None, scale: TensorEntry | None
) -> Iterator[str]:
    """Say what is wrong with one checkpoint tensor and its scale, if anything."""
    name = part.hf_name
    if entry is None:
        yield f"{name} is missing"
        if scale is not None:
            yield f"{part.scale_name} has no weight {name}"
        return
    if entry.shape != part.shape:
        yield f"{name} has shape {list(entry.shape)}, the config asks for {list(part.shape)}"
    if entry.dtype == FP8 and not held.is_matrix:
        yield f"{name} is {FP8}, must be {' or '.join(_allowed(held))}"
    elif entry.dtype == FP8 and scale is None:
        yield f"{name} is {FP8} without its scale {part.scale_name}"
    elif entry.dtype == FP8 and scale is not None:
        yield from _scale_findings(part, entry, scale)
    else:
        if scale is not None:
            yield f"{part.scale_name} is a scale, but {name} is {entry.dtype} and not {FP8}"
        if entry.dtype not in _allowed(held):
            yield f"{name} is {entry.dtype}, must be {' or '.join(_allowed(held))}"


def _scale_findings(part: Part, entry: TensorEntry, scale: TensorEntry) -> Iterator[str]:
    expected = scale_shape(entry.shape)
    if scale.shape != expected:
        yield (
            f"{part.scale_name} has shape {list(scale.shape)}, the 128 x 128 blocks of "
            f"{list(entry.shape)} need {list(expected)}"
        )
    if scale.dtype != SCALE_DTYPE:
        yield f"{part.scale_name} is {scale.dtype}, must be {SCALE_DTYPE}"


def _allowed(held: HeldTensor) -> tuple[str, ...]:
    if held.precision is Precision.STRICT_F32:
        return ("F32",)
    return WIDE_DTYPES


def _unexpected(
    config: Glm5NextConfig, entries: Mapping[str, TensorEntry], known: set[str]
) -> Iterator[str]:
    """Names that are neither text model nor draft layer nor vision tower."""
    draft_layers = _draft_layers(config, entries)
    for name in sorted(set(entries) - known):
        layer = _LAYER_NAME.fullmatch(name)
        if name.startswith(VISION_PREFIX) or (layer and int(layer[1]) in draft_layers):
            continue
        if layer and int(layer[1]) >= config.num_hidden_layers:
            yield (
                f"{name} belongs to layer {layer[1]}, the config has {config.num_hidden_layers} "
                f"layers and that one is no draft layer"
            )
        elif name.endswith(SCALE_SUFFIX):
            yield f"{name} is a scale without a weight"
        else:
            yield f"{name} is unexpected"


def _draft_layers(config: Glm5NextConfig, entries: Mapping[str, TensorEntry]) -> set[int]:
    """Indices of the multi-token-prediction layers behind the text model."""
    draft: set[int] = set()
    for name in entries:
        layer = _LAYER_NAME.fullmatch(name)
        if layer and layer[2].startswith(_MTP_NAMES):
            draft.add(int(layer[1]))
    return {index for index in draft if index >= config.num_hidden_layers}
