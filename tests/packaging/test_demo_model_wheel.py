"""The demo model as users get it: inside the wheel of trnrt-cli, found by name."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(600)]

MAX_DEMO_MODEL_BYTES = 10_000_000


def test_demo_model_ships_within_its_size(wheels: dict[str, Path]) -> None:
    entries = zipfile.ZipFile(wheels["cli"]).infolist()
    model = {
        Path(entry.filename).name: entry.file_size
        for entry in entries
        if entry.filename.startswith("trnrt_cli/demo_model/")
    }
    assert set(model) >= {"config.json", "tokenizer.json", "chat_template.jinja"}
    assert sum(model.values()) <= MAX_DEMO_MODEL_BYTES


def test_demo_model_is_found_by_its_entry_point(everything: Any) -> None:
    report = everything.run("trnrt", "doctor", "demo")
    assert report.returncode == 0, report.stdout + report.stderr
