"""A model folder's safetensors files as one table of tensors: one file, or shards and an index.

No torch: compile hosts, `trnrt plan` and `trnrt verify model` read headers only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trnrt_kernels.errors import CheckpointError
from trnrt_kernels.models.safetensors_header import TensorEntry, read_header

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The tensors of a model folder, by checkpoint name.

    Fields:
        files: every safetensors file that is part of it, sorted by name.
        declared_bytes: the index's `total_size`, None without an index or figure.
    """

    model_dir: Path
    entries: dict[str, TensorEntry]
    files: tuple[Path, ...]
    declared_bytes: int | None = None

    @property
    def tensor_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.num_bytes for entry in self.entries.values())


def open_checkpoint(model_dir: str | Path) -> Checkpoint:
    """Read and check the headers of a model folder.

    Raises:
        CheckpointError: files missing or damaged, or the index and the files disagree. All
            defects found are listed.
    """
    folder = Path(model_dir)
    if not folder.is_dir():
        raise CheckpointError(f"no model folder at {folder}")
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if index.exists():
        return _open_sharded(folder, index)
    if not single.exists():
        raise CheckpointError(
            f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}: copy the complete model folder"
        )
    return Checkpoint(folder, read_header(single), (single,))


def _open_sharded(folder: Path, index_path: Path) -> Checkpoint:
    weight_map, declared_bytes = _read_index(index_path)
    names = sorted(set(weight_map.values()))
    findings = [
        f"{name!r} named by {index_path.name} is no plain file name"
        for name in names
        if Path(name).name != name
    ]
    if findings:
        raise CheckpointError(f"{index_path.name} cannot be used", findings)
    if SINGLE_FILE not in names and (folder / SINGLE_FILE).exists():
        raise CheckpointError(
            f"{folder} has both {SINGLE_FILE} and {INDEX_FILE} with other files: remove one, "
            f"which of them holds the model is not known"
        )
    headers: dict[str, dict[str, TensorEntry]] = {}
    for name in names:
        if not (folder / name).is_file():
            absent = sum(shard == name for shard in weight_map.values())
            findings.append(f"shard {name} is missing ({absent} tensors)")
            continue
        try:
            headers[name] = read_header(folder / name)
        except CheckpointError as error:
            findings.append(str(error))
    findings += _index_findings(weight_map, headers)
    if findings:
        raise CheckpointError(f"the checkpoint in {folder} is incomplete or damaged", findings)
    entries = {name: headers[shard][name] for name, shard in weight_map.items()}
    files = tuple(folder / name for name in names)
    return Checkpoint(folder, entries, files, declared_bytes)


def _read_index(path: Path) -> tuple[dict[str, str], int | None]:
    try:
        raw: Any = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path.name} is not JSON: {error}") from error
    weight_map = raw.get("weight_map") if isinstance(raw, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path.name} has no weight_map")
    for name, shard in weight_map.items():
        if not isinstance(shard, str):
            raise CheckpointError(f"{path.name} maps {name} to {shard!r}, must be a file name")
    metadata = raw.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    return weight_map, int(total) if isinstance(total, int | float) else None


def _index_findings(
    weight_map: dict[str, str], headers: dict[str, dict[str, TensorEntry]]
) -> list[str]:
    """Tensors the index places where they are not, and tensors it does not know."""
    findings = [
        f"{name} is not in {shard}, where the index places it"
        for name, shard in weight_map.items()
        if shard in headers and name not in headers[shard]
    ]
    for shard, header in headers.items():
        for name in header:
            if name not in weight_map:
                findings.append(f"{name} lies in {shard} but not in the index")
            elif weight_map[name] != shard:
                findings.append(f"{name} lies in {shard}, the index says {weight_map[name]}")
    return findings
