"""The repository's files as the meta-tests see them: packages, modules and their imports."""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("kernels", "engine", "compile", "router", "cli")
HEAVY = ("torch", "numpy", "nki", "transformers", "safetensors", "litestar", "uvicorn", "httpx")
"""What a light module imports only inside the function that needs it."""


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module; `is_deferred` when it runs only inside a function or for types."""

    module: str
    line: int
    is_deferred: bool


def module_files(package: str) -> list[Path]:
    """Return the source files of one package, given as `kernels`, `engine`, ..."""
    return sorted(source_folder(package).rglob("*.py"))


def source_folder(package: str) -> Path:
    return ROOT / f"packages/trnrt-{package}/src/trnrt_{package}"


def imports(path: Path) -> list[Import]:
    """Return every import of a module, deferred ones marked."""
    return list(_walk(ast.parse(path.read_text("utf-8")), is_deferred=False))


def _walk(node: ast.AST, *, is_deferred: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, is_deferred)
        elif isinstance(child, ast.ImportFrom):
            # `from package import module` may import the module: both names count.
            for name in (child.module or "", *(f"{child.module}.{a.name}" for a in child.names)):
                yield Import(name, child.lineno, is_deferred)
        else:
            is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _walk(child, is_deferred=is_deferred or is_function or _is_for_types(child))


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def belongs_to(module: str, package: str) -> bool:
    """Say whether a dotted module name lies in a package (itself included)."""
    return module == package or module.startswith(f"{package}.")


def committed_files() -> list[Path]:
    """Return the files git tracks, as absolute paths."""
    listing = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [ROOT / name for name in listing.split("\0") if name and (ROOT / name).is_file()]
