"""The umbrella command: what it finds, what it says about a part that is missing or broken."""

from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from trnrt_cli import main
from trnrt_cli.packages import COMMANDS, PACKAGES, installed_versions

PYPROJECTS = sorted((Path(__file__).parents[2] / "packages").glob("*/pyproject.toml"))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, EntryPoint]:
    """The installed commands, to be filled by a test."""
    entries: dict[str, EntryPoint] = {}
    monkeypatch.setattr(main, "find_commands", lambda: entries)
    return entries


def run(*args: str) -> click.testing.Result:
    return CliRunner().invoke(main.trnrt, args, prog_name="trnrt")


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, main.COMMAND_GROUP)


def test_table_of_commands_matches_what_the_packages_declare() -> None:
    declared = {}
    for path in PYPROJECTS:
        project = tomllib.loads(path.read_text())["project"]
        for name in project.get("entry-points", {}).get(main.COMMAND_GROUP, {}):
            declared[name] = project["name"]
    assert {name: package for name, (package, _) in COMMANDS.items()} == declared
    assert sorted(PACKAGES) == [path.parent.name for path in PYPROJECTS]


def test_known_command_of_a_missing_package_is_answered_with_its_install_command(
    installed: dict[str, EntryPoint],
) -> None:
    result = run("serve", "--model", "demo")
    assert result.exit_code == 1
    assert "trnrt-router" in result.output
    assert "pip install 'trnrt-cli[serve]'" in result.output


def test_unknown_command_is_a_usage_error(installed: dict[str, EntryPoint]) -> None:
    result = run("fly")
    assert result.exit_code == 2
    assert "No such command 'fly'" in result.output


def test_help_lists_what_is_installed_and_how_to_get_the_rest(
    installed: dict[str, EntryPoint],
) -> None:
    installed["compile"] = entry("compile", "trnrt_compile.cli:command")
    listed, missing = run("--help").output.split("Not installed:")
    assert "compile" in listed
    assert "serve" not in listed.split("Commands:")[1]
    assert "serve" in missing
    assert "compile " not in missing.replace("trnrt-cli[compile]", "")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("trnrt_cli.no_such_module:command", "no_such_module"),
        ("trnrt_cli.main:no_such_name", "no_such_name"),
        ("trnrt_cli.main:COMMAND_GROUP", "not a click command"),
    ],
    ids=["module", "attribute", "type"],
)
def test_command_that_does_not_load_says_why_and_leaves_help_working(
    installed: dict[str, EntryPoint], value: str, reason: str
) -> None:
    installed["plan"] = entry("plan", value)
    assert run("--help").exit_code == 0
    result = run("plan", "--flag", "argument")
    assert result.exit_code == 1
    assert reason in result.output


def test_version_lists_every_installed_package() -> None:
    result = run("--version")
    assert result.exit_code == 0
    versions = dict(line.split() for line in result.output.splitlines())
    assert versions == installed_versions()
    assert set(versions) == set(PACKAGES)
