"""`trnrt doctor`: its exit code and what it says of a model folder."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from trnrt_cli import doctor as doctor_module
from trnrt_cli.doctor import doctor
from trnrt_cli.machine import Finding, Level

FINDING = Finding(Level.OK, "python", "fine")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> dict[str, EntryPoint]:
    """The commands doctor finds; the machine itself is fine."""
    entries: dict[str, EntryPoint] = {}
    monkeypatch.setattr(doctor_module, "find_commands", lambda: entries)
    monkeypatch.setattr(doctor_module, "check_machine", lambda *, port: iter([FINDING]))
    return entries


@click.group()
def verify() -> None:
    """Stand-in for the engine's group."""


@verify.command()
@click.argument("folder")
@click.pass_context
def model(ctx: click.Context, folder: str) -> None:
    if folder == "refused":
        raise click.ClickException("no config.json")
    if folder == "exit":
        sys.exit(1)
    ctx.exit(2 if folder == "code" else 0)


def test_machine_alone(commands: dict[str, EntryPoint]) -> None:
    result = CliRunner().invoke(doctor, [])
    assert result.exit_code == 0
    assert "nothing wrong found" in result.output


@pytest.mark.parametrize(
    ("folder", "code"), [("good", 0), ("refused", 1), ("exit", 1), ("code", 1)]
)
def test_model_folder_is_judged_by_the_end_of_verify(
    commands: dict[str, EntryPoint],
    folder: str,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "verify_stand_in", sys.modules[__name__])
    commands["verify"] = EntryPoint("verify", "verify_stand_in:verify", "trnrt.commands")
    result = CliRunner().invoke(doctor, [folder])
    assert result.exit_code == code, result.output
    assert ("no config.json" in result.output) == (folder == "refused")


def test_model_without_the_engine_package_names_its_install_command(
    commands: dict[str, EntryPoint],
) -> None:
    result = CliRunner().invoke(doctor, ["folder"])
    assert result.exit_code == 1
    assert "pip install 'trnrt-cli[serve]'" in result.output


def test_real_report_of_a_folder_that_is_no_model(tmp_path: Path) -> None:
    result = CliRunner().invoke(doctor, [str(tmp_path)])
    assert result.exit_code == 1
    assert "config.json" in result.output


@pytest.mark.parametrize("port", ["-1", "0", "65536"])
def test_port_that_is_none_is_a_usage_error(port: str) -> None:
    result = CliRunner().invoke(doctor, ["--port", port])
    assert result.exit_code == 2
    assert port in result.output
