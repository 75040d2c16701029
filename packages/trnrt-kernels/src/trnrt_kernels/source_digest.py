"""Digest of the sources a kernel is made of: its module and all it imports from this package.

Editing a helper changes the digest of every kernel that uses it and of no other. Modules are read
as text and never imported, so no kernel needs its device to be named.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

PACKAGE = "trnrt_kernels"
_ROOT = Path(__file__).parent


def source_digest(modules: Iterable[str], *, root: Path = _ROOT, package: str = PACKAGE) -> str:
    """SHA-256 over names and texts of the modules and everything of the package they import.

    Args:
        modules: dotted names within `package`.
        root: folder of the package.

    Raises:
        ModuleNotFoundError: a module has no source file in the package.
    """
    pending, texts = list(modules), dict[str, bytes]()
    while pending:
        module = pending.pop()
        if module in texts:
            continue
        path = _source_path(module, root, package)
        texts[module] = path.read_bytes()
        pending += _imports(path, root, package)
    digest = hashlib.sha256()
    for module in sorted(texts):
        digest.update(f"{module}\0{len(texts[module])}\0".encode())
        digest.update(texts[module])
    return digest.hexdigest()


def _source_path(module: str, root: Path, package: str) -> Path:
    relative = module.removeprefix(package).removeprefix(".").replace(".", "/")
    for candidate in (root / f"{relative}.py", root / relative / "__init__.py"):
        if candidate.is_file():
            return candidate
    raise ModuleNotFoundError(f"no source of {module} in {root}")


def _imports(path: Path, root: Path, package: str) -> tuple[str, ...]:
    """Modules of the package that a module's text imports, at the top or inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return tuple(sorted(set(_imported_modules(tree, root, package))))


def _imported_modules(tree: ast.AST, root: Path, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            # `from package import module` names a module, `from module import thing` does not
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [node.module, *(name for name in submodules if _is_module(name, root, package))]
        else:
            continue
        yield from (name for name in names if name == package or name.startswith(f"{package}."))


def _is_module(name: str, root: Path, package: str) -> bool:
    if not name.startswith(f"{package}."):
        return False
    try:
        _source_path(name, root, package)
    except ModuleNotFoundError:
        return False
    return True
