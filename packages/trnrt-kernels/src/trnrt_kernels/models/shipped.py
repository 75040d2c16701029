"""Where a model's files are: a folder, or a model that an installed package ships by name."""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path

from trnrt_kernels.errors import CheckpointError

MODEL_GROUP = "trnrt.models"


def find_model_dir(model: str) -> Path:
    """Return the folder of a model.

    Raises:
        CheckpointError: neither a folder nor the name of a shipped model.
    """
    folder = Path(model)
    shipped = {entry.name: entry for entry in entry_points(group=MODEL_GROUP)}
    # A folder that only happens to be called like a shipped model does not hide it.
    if (folder / "config.json").is_file() or (folder.is_dir() and model not in shipped):
        return folder
    if model in shipped:
        return Path(str(files(shipped[model].module)))
    known = ", ".join(sorted(shipped)) or "none installed: pip install trnrt-cli brings demo"
    raise CheckpointError(f"no model folder {model!r}, and no shipped model of that name ({known})")
