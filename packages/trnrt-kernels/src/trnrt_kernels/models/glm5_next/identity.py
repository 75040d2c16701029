"""Names of what cached bytes depend on: a tier gives them back only under the same name.

Pure functions of files and settings, no torch. Graphs, compilers and the order in which tensors
lie or load are no part of a name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from trnrt_kernels.errors import CheckpointError
from trnrt_kernels.manifest import canonical_digest
from trnrt_kernels.memory_plan import cache_dtypes
from trnrt_kernels.models.checkpoint import Checkpoint
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.safetensors_header import TensorEntry
from trnrt_kernels.serving import GRID, ServingShape

CACHE_FORMAT_VERSION = 1  # raised when the bytes of a slot or page, or their order, change
SAMPLE_BYTES = 4096

# Config fields that change no cached value: limits, ids that end a text, the draft layers, and
# the stored dtype, of which the cache dtypes say what matters.
_NOT_CACHED = frozenset(
    {
        "max_position_embeddings",
        "num_nextn_predict_layers",
        "pad_token_id",
        "eos_token_ids",
        "dtype",
    }
)


def weights_id(checkpoint: Checkpoint) -> str:
    """SHA-256 over name, shape, dtype and 4 KiB from the middle of every tensor, in hex.

    Fine-tunes have equal headers, so values must count; a sample of each tensor takes seconds
    where all bytes would take minutes.

    Raises:
        CheckpointError: a file cannot be read or is shorter than its header says.
    """
    samples: dict[str, bytes] = {}
    by_file: dict[Path, list[TensorEntry]] = {}
    for entry in checkpoint.entries.values():
        by_file.setdefault(entry.path, []).append(entry)
    for path, entries in by_file.items():
        samples |= _samples(path, entries)
    digest = hashlib.sha256()
    for name in sorted(checkpoint.entries):
        entry, sample = checkpoint.entries[name], samples[name]
        header = canonical_digest([name, entry.dtype, entry.shape, len(sample)])
        digest.update(header.encode())
        digest.update(sample)
    return digest.hexdigest()


def cache_id(
    config: Glm5NextConfig,
    *,
    weights_id: str,
    shape: ServingShape,
    row_tile: int,
    latent_dtype: str | None = None,
    format_version: int = CACHE_FORMAT_VERSION,
) -> str:
    """SHA-256 over all that makes cached bytes mean what they mean, in hex.

    Args:
        weights_id: as the function of that name returns it.
        shape: dtype, page size, rank layout and numeric mode count; limits and buckets do not.
        row_tile: what row counts of matrix products are padded to.
        latent_dtype: as in `memory_plan.cache_dtypes`.
    """
    dims = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in _NOT_CACHED
    }
    return canonical_digest(
        {
            "family": config.family,
            "dims": dims,
            "weights_id": weights_id,
            "cache_dtypes": cache_dtypes(shape.dtype, latent_dtype),
            "page_size": shape.page_size,
            "grid": GRID,
            "ranks": [shape.tp_size, shape.cp_size, shape.lnc],
            "numeric_mode": shape.numeric_mode,
            "row_tile": row_tile,
            "format_version": format_version,
        }
    )


def _samples(path: Path, entries: Iterable[TensorEntry]) -> dict[str, bytes]:
    """The middle of each tensor of a file, by name; the whole of a small one."""
    samples = {}
    try:
        with path.open("rb") as file:
            for entry in entries:
                count = min(SAMPLE_BYTES, entry.num_bytes)
                start = entry.offset + (entry.num_bytes - count) // 2
                samples[entry.name] = os.pread(file.fileno(), count, start)
                if len(samples[entry.name]) < count:
                    raise CheckpointError(f"{path.name} is truncated: {entry.name} is cut off")
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    return samples
