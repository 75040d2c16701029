"""The five wheels, built and installed alone: what each brings, and what it does not."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.source_tree import HEAVY, PACKAGES, ROOT
from support.tiny_checkpoint import make_tiny_checkpoint

pytestmark = [pytest.mark.packaging, pytest.mark.timeout(600)]

MakeEnvironment = Callable[..., Any]
TRNRT = {f"trnrt-{package}" for package in PACKAGES}
WEB_FRAMEWORKS = {"litestar", "uvicorn", "starlette", "fastapi", "flask", "aiohttp", "httpx"}


@pytest.mark.parametrize("package", PACKAGES)
def test_wheel_holds_license_types_and_nothing_foreign(
    wheels: dict[str, Path], package: str
) -> None:
    names = zipfile.ZipFile(wheels[package]).namelist()
    folders = {name.split("/")[0] for name in names}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert f"trnrt_{package}/py.typed" in names
    assert len(folders) == 2, folders
    assert not [name for name in names if "__pycache__" in name]


def test_kernels_alone_import_without_torch(make_environment: MakeEnvironment) -> None:
    environment = make_environment("kernels")
    assert environment.packages() & (TRNRT | {"torch"}) == {"trnrt-kernels"}
    environment.python("import trnrt_kernels, trnrt_kernels.serving, trnrt_kernels.manifest")
    assert environment.run("trnrt-kernels", "--help").returncode == 0


def test_router_alone_brings_no_torch(make_environment: MakeEnvironment) -> None:
    environment = make_environment("router")
    installed = environment.packages()
    assert installed & TRNRT == {"trnrt-router", "trnrt-kernels"}
    assert "torch" not in installed
    environment.python("import trnrt_router.app")
    help_text = environment.run("trnrt-router", "--help")
    assert help_text.returncode == 0
    assert "serve" in help_text.stdout


def test_router_without_the_engine_names_its_install_command(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    environment = make_environment("router")
    result = environment.run("trnrt-router", "engine", "--model", str(tmp_path))
    assert result.returncode != 0
    assert "pip install" in result.stderr
    assert "Traceback" not in result.stderr


def test_compile_alone_brings_no_router_engine_or_web_framework(
    make_environment: MakeEnvironment,
) -> None:
    environment = make_environment("compile", with_torch=True)
    installed = environment.packages()
    assert installed & TRNRT == {"trnrt-compile", "trnrt-kernels"}
    assert installed & WEB_FRAMEWORKS == set()
    assert "torch" in installed
    assert environment.run("trnrt-compile", "--help").returncode == 0


def test_umbrella_alone_names_what_is_missing(make_environment: MakeEnvironment) -> None:
    environment = make_environment("cli")
    assert environment.packages() & TRNRT == {"trnrt-cli"}
    serve = environment.run("trnrt", "serve", "--model", "demo")
    assert serve.returncode == 1
    assert "pip install 'trnrt-cli[serve]'" in serve.stderr
    assert "pip install 'trnrt-cli[compile]'" in environment.run("trnrt", "compile").stderr
    assert "pip install 'trnrt-cli[serve]'" in environment.run("trnrt", "demo").stderr
    assert environment.run("trnrt", "doctor").returncode == 0


def test_umbrella_with_everything_lists_all_and_imports_nothing_heavy(everything: Any) -> None:
    assert everything.packages() >= TRNRT
    script = """
import sys
from trnrt_cli.main import trnrt
trnrt(["--help"], standalone_mode=False)
print(*{name.split(".")[0] for name in sys.modules})
"""
    *help_text, modules = everything.python(script).splitlines()
    assert "Not installed:" not in "\n".join(help_text)
    assert set(modules.split()) & set(HEAVY) == set()
    versions = everything.run("trnrt", "--version").stdout
    assert {line.split()[0] for line in versions.splitlines()} == TRNRT


def test_engine_and_router_serve_a_model_folder(
    make_environment: MakeEnvironment, tmp_path: Path
) -> None:
    environment = make_environment("engine", "router", with_torch=True)
    assert environment.packages() & TRNRT == {"trnrt-engine", "trnrt-router", "trnrt-kernels"}
    model = make_tiny_checkpoint(tmp_path / "tiny", tokenizer=True)
    result = environment.run("python", str(ROOT / "tests/support/serve_once.py"), str(model))
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["model"] == "tiny"
    assert answer["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("package", ["engine", "compile"])
def test_kernels_of_another_release_are_refused_by_name(
    make_environment: MakeEnvironment,
    uv_env: Mapping[str, str],
    tmp_path: Path,
    package: str,
) -> None:
    environment = make_environment(package, with_torch=True)
    environment.install("--no-deps", newer_kernels(tmp_path))
    result = environment.run("python", "-c", f"import trnrt_{package}")
    assert result.returncode == 1
    assert "AttributeError" not in result.stderr
    assert f"trnrt-{package} 0." in result.stderr
    assert "trnrt-kernels 9.9.9 has 99" in result.stderr


def newer_kernels(folder: Path) -> Path:
    """Copy trnrt-kernels as a release of a later internal API."""
    source = ROOT / "packages/trnrt-kernels"
    copy = folder / "trnrt-kernels"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    about = copy / "src/trnrt_kernels/__about__.py"
    about.write_text('__version__ = "9.9.9"\n\nINTERNAL_API = 99\n')
    return copy
