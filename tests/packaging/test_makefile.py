"""The Makefile's rules: what uv is told of pip's find-links, and environments that mend themselves.

Hatch is a stand-in here that makes a bare environment and writes down each call; the real one runs
whenever somebody calls `make`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.source_tree import ROOT

PIP_KEYS = ("PIP_FIND_LINKS", "PIP_CONFIG_FILE", "UV_FIND_LINKS", "UV_TORCH_BACKEND", "MAKEFLAGS")
HATCH = """#!/bin/sh
echo "$HATCH_PYTHON $*" >> calls
[ -d .venv ] || { mkdir -p .venv/bin && ln -s "%s" .venv/bin/python; }
"""


def make(folder: Path, *arguments: str, **environ: str) -> str:
    env = {key: value for key, value in os.environ.items() if key not in PIP_KEYS}
    result = subprocess.run(
        ["make", "-s", *arguments],
        cwd=folder,
        env={**env, "PIP_CONFIG_FILE": os.devnull, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def find_links(**environ: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in make(ROOT, "find-links", **environ).splitlines())


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("/wheels", "/wheels"),
        ("/a /b", "/a,/b"),
        ("\n/a\n  /b c\n", "/a,/b,c"),
        ("~/wheels", f"{os.environ.get('HOME')}/wheels"),
    ],
    ids=["one", "spaces", "lines", "home"],
)
def test_find_links_of_the_environment_are_handed_on(value: str, told: str) -> None:
    assert find_links(PIP_FIND_LINKS=value) == {"UV_FIND_LINKS": told, "UV_TORCH_BACKEND": ""}


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ("[global]\nfind-links = /a\n", "/a"),
        ("[global]\nfind-links =\n    /a\n    /b c\n", "/a,/b,c"),
        ("[global]\nfind-links = /a\n[install]\nfind-links = /b\n", "/b"),
    ],
    ids=["global", "lines", "install-wins"],
)
def test_find_links_of_pip_s_configuration_are_handed_on(
    tmp_path: Path, config: str, told: str
) -> None:
    (tmp_path / "pip.conf").write_text(config)
    settings = find_links(PIP_CONFIG_FILE=str(tmp_path / "pip.conf"))
    assert settings == {"UV_FIND_LINKS": told, "UV_TORCH_BACKEND": ""}


def test_environment_wins_over_configuration_and_uv_s_own_over_both(tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nfind-links = /a\n")
    both = {"PIP_CONFIG_FILE": str(tmp_path / "pip.conf"), "PIP_FIND_LINKS": "/b"}
    assert find_links(**both)["UV_FIND_LINKS"] == "/b"
    assert find_links(**both, UV_FIND_LINKS="/c")["UV_FIND_LINKS"] == "/c"


def test_without_find_links_the_cpu_build_is_chosen() -> None:
    assert find_links() == {"UV_FIND_LINKS": "", "UV_TORCH_BACKEND": "cpu"}
    assert find_links(UV_TORCH_BACKEND="cu130")["UV_TORCH_BACKEND"] == "cu130"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the Makefile, one package and a Hatch that only makes a bare environment."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "packages/one").mkdir(parents=True)
    for path in (tmp_path / "pyproject.toml", tmp_path / "packages/one/pyproject.toml"):
        path.touch()
    (tmp_path / ".venv-tools").mkdir()
    (tmp_path / ".venv-tools/.complete").touch()
    hatch = tmp_path / "hatch"
    hatch.write_text(HATCH % sys.executable)
    hatch.chmod(0o755)
    return tmp_path


def calls(project: Path) -> list[str]:
    return (project / "calls").read_text().splitlines() if (project / "calls").exists() else []


def test_environment_is_made_once_with_hatch_s_own_interpreter(project: Path) -> None:
    for _ in range(2):
        make(project, "env", "HATCH=./hatch")
    assert calls(project) == ["self run sync"]


def test_half_made_environment_is_made_again(project: Path) -> None:
    (project / ".venv/bin").mkdir(parents=True)
    (project / ".venv/left-over").touch()
    make(project, "env", "HATCH=./hatch")
    assert not (project / ".venv/left-over").exists()
    assert (project / ".venv/.complete").exists()


@pytest.mark.parametrize("damage", ["interpreter", "moved"])
def test_finished_environment_that_no_longer_works_is_made_again(
    project: Path, damage: str
) -> None:
    make(project, "env", "HATCH=./hatch")
    if damage == "interpreter":
        (project / ".venv/bin/python").unlink()
    else:
        (project / ".venv/.complete").write_text("/elsewhere\n")
    make(project, "env", "HATCH=./hatch")
    assert len(calls(project)) == 2
    assert (project / ".venv/bin/python").exists()


def test_changed_package_is_synced_into_the_environment_that_is_there(project: Path) -> None:
    make(project, "env", "HATCH=./hatch")
    (project / ".venv/kept").touch()
    later = (project / ".venv/.complete").stat().st_mtime + 10
    os.utime(project / "packages/one/pyproject.toml", (later, later))
    make(project, "env", "HATCH=./hatch")
    assert len(calls(project)) == 2
    assert (project / ".venv/kept").exists()
