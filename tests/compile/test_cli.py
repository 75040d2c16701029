"""The compile group as it stands: it says what it has, and claims no step."""

from __future__ import annotations

from click.testing import CliRunner

from trnrt_compile import __version__
from trnrt_compile.cli import command


def test_group_says_plainly_that_it_has_no_steps() -> None:
    result = CliRunner().invoke(command, ["--help"])
    assert result.exit_code == 0
    assert command.commands == {}
    assert "no steps yet" in result.output


def test_step_that_does_not_exist_is_a_usage_error() -> None:
    assert CliRunner().invoke(command, ["shapes"]).exit_code == 2


def test_version() -> None:
    assert __version__ in CliRunner().invoke(command, ["--version"]).output
