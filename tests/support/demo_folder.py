"""The model folder that ships with trnrt-cli."""

from importlib.resources import files
from pathlib import Path

DEMO_DIR = Path(str(files("trnrt_cli.demo_model")))
