"""Wheels built from the five packages, and clean environments to install them in."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from uv import find_uv_bin

from support.source_tree import PACKAGES, ROOT

TORCH = "torch==2.13.0"
LIMIT_S = 400


@dataclass(frozen=True, slots=True)
class CleanEnvironment:
    """A virtual environment with nothing but what a test installed."""

    folder: Path
    uv_env: Mapping[str, str]

    @property
    def bin(self) -> Path:
        return self.folder / "bin"

    def install(self, *arguments: str | Path) -> None:
        run_uv(self.uv_env, "pip", "install", "--python", self.bin / "python", *arguments)

    def packages(self) -> set[str]:
        """Return the names of everything installed."""
        python = self.bin / "python"
        listing = run_uv(self.uv_env, "pip", "list", "--format=json", "--python", python)
        return {entry["name"].lower() for entry in json.loads(listing)}

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of this environment away from the source tree."""
        return subprocess.run(
            [self.bin / command, *arguments],
            cwd=self.folder,
            env=plain_environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def python(self, script: str) -> str:
        """Run a script with this environment's interpreter and return what it prints."""
        result = self.run("python", "-c", script)
        assert result.returncode == 0, result.stderr
        return result.stdout


MakeEnvironment = Callable[..., CleanEnvironment]


def plain_environ() -> dict[str, str]:
    """Return the environment without what points back at the one the tests run in."""
    dropped = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    return {
        key: value
        for key, value in os.environ.items()
        if key not in dropped and not key.startswith("TRNRT_")
    }


def run_uv(env: Mapping[str, str], *arguments: str | Path) -> str:
    result = subprocess.run(
        [find_uv_bin(), *arguments],
        env=dict(env),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="session")
def uv_env() -> dict[str, str]:
    """The environment uv needs to find the CPU build of torch, by the Makefile's rule."""
    listing = subprocess.run(
        ["make", "-s", "find-links"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    settings = dict(line.split("=", 1) for line in listing.splitlines())
    return plain_environ() | {key: value for key, value in settings.items() if value}


def build_wheel(source: Path, out: Path, env: Mapping[str, str]) -> Path:
    """Build a package's sdist and, from that alone, its wheel."""
    run_uv(env, "build", "--quiet", "--python", sys.executable, "--out-dir", out, source)
    (wheel,) = out.glob(f"{source.name.replace('-', '_')}-*.whl")
    return wheel


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory, uv_env: dict[str, str]) -> dict[str, Path]:
    """Every package built by itself: copied away from its siblings first."""
    sources = tmp_path_factory.mktemp("sources")
    out = tmp_path_factory.mktemp("wheels")
    built = {}
    for package in PACKAGES:
        name = f"trnrt-{package}"
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")
        shutil.copytree(ROOT / "packages" / name, sources / name, ignore=ignored)
        built[package] = build_wheel(sources / name, out, uv_env)
    return built


@pytest.fixture(scope="session")
def make_environment(
    tmp_path_factory: pytest.TempPathFactory, uv_env: dict[str, str], wheels: dict[str, Path]
) -> MakeEnvironment:
    """Make an environment with some of the wheels and whatever they ask for."""

    def make(*packages: str, with_torch: bool = False) -> CleanEnvironment:
        links = ",".join(filter(None, [uv_env.get("UV_FIND_LINKS"), str(wheels["cli"].parent)]))
        env = uv_env | {"UV_FIND_LINKS": links}
        environment = CleanEnvironment(tmp_path_factory.mktemp("env"), env)
        run_uv(uv_env, "venv", "--quiet", "--python", sys.executable, environment.folder)
        requirements = [TORCH] if with_torch else []
        for package in packages:
            name, bracket, extra = package.partition("[")
            requirements.append(f"{wheels[name]}{bracket}{extra}")
        environment.install(*requirements)
        assert not [name for name in environment.packages() if name.startswith("nvidia-")]
        return environment

    return make


@pytest.fixture(scope="session")
def everything(make_environment: MakeEnvironment) -> CleanEnvironment:
    """`trnrt-cli[all]`, installed."""
    return make_environment("cli[all]", with_torch=True)
