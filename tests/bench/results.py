"""docs/results.md: one section per benchmark, each replaced by its own script only."""

from __future__ import annotations

import re
from pathlib import Path

HEADER = "# Results\n\nMeasured on CPU; every section names its machine, date and command.\n"


def write_section(path: Path, title: str, text: str) -> None:
    """Replace or append a section `## title`."""
    content = path.read_text("utf-8") if path.exists() else HEADER
    section = f"## {title}\n\n{text}\n"
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if pattern.search(content):
        content = pattern.sub(lambda _: section + "\n", content)
    else:
        content = f"{content.rstrip()}\n\n{section}"
    path.write_text(f"{content.rstrip()}\n", "utf-8")
