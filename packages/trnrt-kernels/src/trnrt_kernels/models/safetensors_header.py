"""Read and check the header of one safetensors file, without torch and without its data.

Layout: eight bytes with the header's length (little endian), a JSON object
`{name: {dtype, shape, data_offsets}}`, then the data. Every byte must belong to exactly one
tensor: a file that is too short, too long, overlapping or gapped is damaged, and is refused here
rather than read as plausible garbage.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from trnrt_kernels.errors import CheckpointError

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000

DTYPE_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I16": 2,
    "U16": 2,
    "F16": 2,
    "BF16": 2,
    "I32": 4,
    "U32": 4,
    "F32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies: `num_bytes` bytes at `offset` of `path`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    offset: int
    num_bytes: int


def read_header(path: Path) -> dict[str, TensorEntry]:
    """Read a file's table of tensors.

    Raises:
        CheckpointError: unreadable, truncated or inconsistent; the message names the file and the
            two figures that disagree.
    """
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(LENGTH_BYTES)
            if len(start) < LENGTH_BYTES:
                raise CheckpointError(
                    f"{path.name} is truncated: {file_bytes} bytes, no room for a header"
                )
            (header_bytes,) = struct.unpack("<Q", start)
            if header_bytes > MAX_HEADER_BYTES or LENGTH_BYTES + header_bytes > file_bytes:
                raise CheckpointError(
                    f"{path.name} is truncated or no safetensors file: its header should have "
                    f"{header_bytes} bytes, the file has {file_bytes}"
                )
            text = file.read(header_bytes)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    entries = _entries(path, _parse(path, text), data_start=LENGTH_BYTES + header_bytes)
    _check_extents(path, entries, LENGTH_BYTES + header_bytes, file_bytes)
    return {entry.name: entry for entry in entries}


def _parse(path: Path, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        repeated = (
            sorted({name for name in names if names.count(name) > 1})
            if (len(set(names)) < len(names))
            else []
        )
        if repeated:
            raise CheckpointError(f"{path.name}: names occur twice in the header: {repeated}")
        return dict(pairs)

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except CheckpointError:
        raise
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name}: the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path.name}: the header is no JSON object")
    header.pop("__metadata__", None)
    return header


def _entries(path: Path, header: dict[str, Any], *, data_start: int) -> list[TensorEntry]:
    entries = []
    for name, raw in header.items():
        dtype, shape, offsets = _fields(path, name, raw)
        begin, end = offsets
        expected = math.prod(shape) * DTYPE_BYTES[dtype]
        if end - begin != expected:
            raise CheckpointError(
                f"{path.name}: {name} of {dtype} {list(shape)} needs {expected} bytes, its "
                f"offsets {offsets} hold {end - begin}"
            )
        entries.append(TensorEntry(name, dtype, shape, path, data_start + begin, end - begin))
    return sorted(entries, key=lambda entry: (entry.offset, entry.num_bytes))


def _fields(path: Path, name: str, raw: Any) -> tuple[str, tuple[int, ...], list[int]]:
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path.name}: the header entry of {name} is no object")
    dtype, shape, offsets = raw.get("dtype"), raw.get("shape"), raw.get("data_offsets")
    if dtype not in DTYPE_BYTES:
        raise CheckpointError(f"{path.name}: {name} has the unknown dtype {dtype!r}")
    if not _are_sizes(shape):
        raise CheckpointError(f"{path.name}: {name} has the shape {shape!r}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise CheckpointError(f"{path.name}: {name} has the data offsets {offsets!r}")
    return dtype, tuple(shape), offsets


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(
        isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values
    )


def _check_extents(
    path: Path, entries: list[TensorEntry], data_start: int, file_bytes: int
) -> None:
    """Every byte of the data must belong to exactly one tensor."""
    position, before = data_start, "the header"
    for entry in entries:
        if entry.offset != position:
            fault = "overlaps" if entry.offset < position else "leaves a gap after"
            raise CheckpointError(
                f"{path.name}: {entry.name} at byte {entry.offset} {fault} {before}, which ends "
                f"at byte {position}"
            )
        position, before = entry.offset + entry.num_bytes, entry.name
    if position != file_bytes:
        fault = "is truncated" if file_bytes < position else "has bytes no tensor owns"
        raise CheckpointError(
            f"{path.name} {fault}: the header accounts for {position} bytes, the file has "
            f"{file_bytes}"
        )
