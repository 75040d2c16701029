"""Tensors larger than memory: their file has no blocks but those that were written."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor


@contextmanager
def sparse_tensor(*shape: int) -> Iterator[Tensor]:
    """Zeros of one byte each; only what is touched takes memory."""
    size = 1
    for length in shape:
        size *= length
    with tempfile.TemporaryDirectory(prefix="sparse-") as folder:
        path = str(Path(folder) / "tensor")
        yield torch.from_file(path, shared=True, size=size, dtype=torch.uint8).view(shape)
