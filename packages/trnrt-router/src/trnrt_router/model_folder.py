"""Where a model's files are: a folder, or a model that an installed package ships by name."""

from __future__ import annotations

from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path

from trnrt_router.errors import ConfigError, MissingPart

MODEL_GROUP = "trnrt.models"
INSTALL = {"demo": "pip install trnrt-cli"}


def resolve_model(model: str) -> Path:
    """Return the folder of a model.

    Raises:
        MissingPart: a shipped model whose package is not installed.
        ConfigError: neither a folder nor a known name.
    """
    folder = Path(model)
    shipped = {entry.name: entry for entry in entry_points(group=MODEL_GROUP)}
    # A folder that only happens to be called like a shipped model does not hide it.
    if (folder / "config.json").is_file() or (folder.is_dir() and model not in shipped):
        return folder
    if model in shipped:
        return Path(str(files(shipped[model].module)))
    if model in INSTALL:
        raise MissingPart(f"the model {model!r} is not installed: {INSTALL[model]}")
    names = ", ".join(sorted({*shipped, *INSTALL}))
    raise ConfigError(f"no model folder {model!r}, and no shipped model of that name ({names})")
