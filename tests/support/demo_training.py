"""Makes `demo_training`, which no wheel carries, importable for tests."""

import sys
from pathlib import Path

TRAINING_DIR = Path(__file__).parents[2] / "packages" / "trnrt-cli" / "demo_training"


def import_path() -> None:
    """Put the folder that holds `demo_training` on the path."""
    parent = str(TRAINING_DIR.parent)
    if parent not in sys.path:
        sys.path.append(parent)
