"""Load a checkpoint's text model into the form the ops take.

Files are memory-mapped and read once. Every held tensor is allocated whole and filled part by
part, FP8 parts a row of blocks at a time; the mapped pages of a part are given back as soon as it
has been copied. So memory peaks at the weights in the form held plus one checkpoint tensor.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from trnrt_kernels.common.fp8 import dequantise_blocks
from trnrt_kernels.models.checkpoint import Checkpoint, open_checkpoint
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.inventory import HeldTensor
from trnrt_kernels.models.glm5_next.tensor_check import (
    FoundTensor,
    activation_dtype,
    match_tensors,
)
from trnrt_kernels.models.safetensors_header import TensorEntry

# Called after each checkpoint tensor with (bytes read, bytes to read).
Progress = Callable[[int, int], None]

TORCH_DTYPES = {
    "F8_E4M3": torch.float8_e4m3fn,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
}
WIDE = 1024  # output features from which the one-row product has a faster kernel
ACTIVATION_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class TensorGroup(Mapping[str, Tensor]):
    """Tensors by short name, as items or attributes."""

    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self._tensors[name]
        except KeyError:
            raise AttributeError(f"no tensor {name!r} here: {', '.join(self._tensors)}") from None


class Weights:
    """The text model's tensors in the form held.

    Attributes:
        embed: [V, D]; norm: [D]; lm_head: [V, D]; activation dtype.
        layers: one group per layer; names and shapes are the inventory's.
        dtype: the activation dtype.
    """

    def __init__(
        self, model_tensors: dict[str, Tensor], layers: list[dict[str, Tensor]], dtype: torch.dtype
    ) -> None:
        self.embed = model_tensors["embed"]
        self.norm = model_tensors["norm"]
        self.lm_head = model_tensors["lm_head"]
        self.layers = [TensorGroup(tensors) for tensors in layers]
        self.dtype = dtype

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor with its unique name, as `layers.3.o_proj`."""
        yield from (("embed", self.embed), ("norm", self.norm), ("lm_head", self.lm_head))
        for index, layer in enumerate(self.layers):
            for name, tensor in layer.items():
                yield f"layers.{index}.{name}", tensor


def load_weights(
    model_dir: str | Path,
    config: Glm5NextConfig,
    *,
    dtype: str = "auto",
    progress: Progress | None = None,
) -> Weights:
    """Load and, where it is FP8, dequantise a model folder's text model.

    Args:
        dtype: "float32", "bfloat16", or "auto" for the dtype of the unquantised matrices.
        progress: called after each checkpoint tensor with bytes read and bytes to read.

    Raises:
        CheckpointError: files missing or damaged, or tensors that do not fit the config.
        ValueError: unknown dtype.
    """
    if dtype != "auto" and dtype not in ACTIVATION_DTYPES:
        raise ValueError(f"dtype is {dtype!r}, must be auto, {', '.join(ACTIVATION_DTYPES)}")
    checkpoint = open_checkpoint(model_dir)
    found = match_tensors(config, checkpoint.entries)
    name = activation_dtype(found) if dtype == "auto" else dtype
    return _fill(checkpoint, found, config.num_hidden_layers, ACTIVATION_DTYPES[name], progress)


def _fill(
    checkpoint: Checkpoint,
    found: list[FoundTensor],
    num_layers: int,
    dtype: torch.dtype,
    progress: Progress | None,
) -> Weights:
    model_tensors: dict[str, Tensor] = {}
    layers: list[dict[str, Tensor]] = [{} for _ in range(num_layers)]
    files = {path: MappedFile(path) for path in checkpoint.files}
    total = sum(_num_bytes(entry, scale) for t in found for _, entry, scale in t.parts)
    done = 0
    for tensor in found:
        held = tensor.held
        target = _allocate(held, torch.float32 if held.is_strict else dtype)
        for part, entry, scale in tensor.parts:
            rows = target[part.start : part.stop]
            _copy_part(files, entry, scale, out=rows)
            done += _num_bytes(entry, scale)
            if progress is not None:
                progress(done, total)
        group = model_tensors if held.layer is None else layers[held.layer]
        group[held.name] = target
    return Weights(model_tensors, layers, dtype)


def _allocate(held: HeldTensor, dtype: torch.dtype) -> Tensor:
    """An empty tensor in the memory order its products are fastest in.

    Wide float32 matrices lie input by input: for one row the library streams them at twice the
    rate. Narrow ones, and bfloat16, keep the stored order, which is as fast or faster.
    """
    if dtype == torch.float32 and held.is_product and held.shape[0] >= WIDE:
        return torch.empty(held.shape[::-1], dtype=dtype).t()
    return torch.empty(held.shape, dtype=dtype)


def _num_bytes(entry: TensorEntry, scale: TensorEntry | None) -> int:
    return entry.num_bytes + (0 if scale is None else scale.num_bytes)


def _copy_part(
    files: dict[Path, MappedFile], entry: TensorEntry, scale: TensorEntry | None, *, out: Tensor
) -> None:
    source = files[entry.path].tensor(entry)
    if scale is None:
        out.copy_(source.view(out.shape))
    else:
        scales = files[scale.path].tensor(scale)
        dequantise_blocks(source, scales, out_RC=out.view(source.shape))
        files[scale.path].release()
    files[entry.path].release()


class MappedFile:
    """A safetensors file mapped into memory; pages are read when a tensor is touched."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            # private and writable: torch refuses to wrap read-only memory without a warning
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)

    def tensor(self, entry: TensorEntry) -> Tensor:
        """View a tensor's bytes; valid as long as this file is mapped."""
        dtype = TORCH_DTYPES[entry.dtype]
        if entry.num_bytes == 0:
            return torch.empty(entry.shape, dtype=dtype)
        raw = torch.frombuffer(
            self._map, dtype=torch.uint8, count=entry.num_bytes, offset=entry.offset
        )
        if entry.offset % dtype.itemsize:  # the format does not promise alignment
            raw = raw.clone()
        return raw.view(dtype).view(entry.shape)

    def release(self) -> None:
        """Give back the memory of what has been read.

        The whole file, not one tensor: a page fault also maps pages of the tensors beside it.
        """
        self._map.madvise(mmap.MADV_DONTNEED)
