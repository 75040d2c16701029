"""Form of the committed text: sizes of modules and functions, nothing of the machine it grew on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.source_tree import PACKAGES, ROOT, committed_files, module_files

MAX_MODULE_LINES = 500
MAX_KERNEL_LINES = 800
MAX_FUNCTION_LINES = 60
KERNEL_FOLDERS = {"decode", "prefill"}

MACHINE = re.compile(
    r"(?<![\w.~])/(?:root|home/\w|Users/\w|work|opt/wheels)/"
    r"|\.\./" + r"shared\b"
    r"|\b(?:pypi\.org|pythonhosted\.org|npmjs\.org|debian\.org|download\.pytorch\.org)"
)
OWN_PATTERNS = {Path(__file__).name}


def is_kernel(path: Path) -> bool:
    return path.parent.name in KERNEL_FOLDERS and not path.name.endswith("_ref.py")


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_keep_to_their_size(package: str) -> None:
    too_long = []
    for path in module_files(package):
        lines = len(path.read_text("utf-8").splitlines())
        if lines > (MAX_KERNEL_LINES if is_kernel(path) else MAX_MODULE_LINES):
            too_long.append(f"{path.relative_to(ROOT)}: {lines} lines")
    assert too_long == []


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count a function's lines without its docstring."""
    has_docstring = ast.get_docstring(function) is not None
    docstring = function.body[0] if has_docstring else None
    length = (function.end_lineno or function.lineno) - function.lineno + 1
    if docstring is not None:
        length -= (docstring.end_lineno or docstring.lineno) - docstring.lineno + 1
    return length


@pytest.mark.parametrize("package", PACKAGES)
def test_functions_fit_one_screen(package: str) -> None:
    too_long = [
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}: {body_lines(function)} lines"
        for path in module_files(package)
        if not is_kernel(path)
        for function in functions(path)
        if body_lines(function) > MAX_FUNCTION_LINES
    ]
    assert too_long == []


def test_committed_text_names_no_machine_and_no_registry() -> None:
    found = []
    for path in committed_files():
        if path.name in OWN_PATTERNS:
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        for match in MACHINE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{path.relative_to(ROOT)}:{line}: {match[0]}")
    assert found == []


@pytest.mark.parametrize("text", ["/root/x", "'/work/main'", "https://pypi.org/simple"])
def test_the_pattern_of_machines_finds_them(text: str) -> None:
    assert MACHINE.search(text)


def test_every_package_has_its_usual_files() -> None:
    license_text = (ROOT / "LICENSE").read_text()
    for package in PACKAGES:
        folder = ROOT / f"packages/trnrt-{package}"
        assert (folder / "LICENSE").read_text() == license_text
        assert "## Unreleased" in (folder / "CHANGELOG.md").read_text()
        assert (folder / f"src/trnrt_{package}/py.typed").exists()
