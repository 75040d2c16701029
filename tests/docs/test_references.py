"""What the documentation names exists: files, linked pages, make targets, trnrt commands."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.option_table import commands
from support.source_tree import ROOT, committed_files

PAGES = sorted({*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")})
SPELLED_FILE = re.compile(r"`([\w./*-]+\.(?:py|md|toml|json|jsonl|svg|yaml))`")
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
MADE_LATER = {"Dockerfile", "compose.yaml"}
CHECKPOINT_FILES = {"config.json", "generation_config.json", "tokenizer.json"}
CHECKPOINT_FILES |= {"tokenizer_config.json", "pyproject.toml", "manifest.json"}


def named_files(page: Path) -> Iterator[str]:
    for name in SPELLED_FILE.findall(page.read_text("utf-8")):
        if name not in CHECKPOINT_FILES | MADE_LATER and "*" not in name:
            yield name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_named_file_exists(page: Path) -> None:
    known = [f"/{path.relative_to(ROOT)}" for path in committed_files()]
    missing = [
        name for name in named_files(page) if not any(path.endswith(f"/{name}") for path in known)
    ]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_linked_page_exists(page: Path) -> None:
    targets = [t for t in LINK.findall(page.read_text("utf-8")) if "://" not in t]
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_every_spelled_command_exists() -> None:
    known = {name for name, _ in commands()} | {name.split()[0] for name, _ in commands()}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets |= set(re.findall(r"^([a-z ]+): env", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = {name for target in targets for name in target.split()}
    for page in PAGES:
        text = page.read_text("utf-8")
        for command in re.findall(r"^trnrt ((?:verify )?[a-z]+)", text, re.MULTILINE):
            assert command in known, f"{page.name}: trnrt {command}"
        for target in re.findall(r"`make ([a-z-]+)`", text):
            assert target in made, f"{page.name}: make {target}"
