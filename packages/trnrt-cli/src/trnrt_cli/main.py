"""`trnrt`: one command over those of whichever trnrt packages are installed.

Commands are found by the entry-point group `trnrt.commands` and loaded when they are used, so
that `trnrt --help` costs no torch and no web framework.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

import click

from trnrt_cli.packages import COMMANDS, installed_versions

COMMAND_GROUP = "trnrt.commands"


class InstalledCommands(click.Group):
    """A group over the entry points of `trnrt.commands`; names the package of a missing one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(find_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = find_commands().get(cmd_name)
        return None if entry is None else load_command(entry)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in COMMANDS and name not in find_commands():
            package, install = COMMANDS[name]
            raise click.ClickException(
                f"`trnrt {name}` is part of {package}, which is not installed: {install}"
            )
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        missing = sorted(COMMANDS.keys() - find_commands().keys())
        if missing:
            with formatter.section("Not installed"):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in missing])


@cache
def find_commands() -> dict[str, EntryPoint]:
    """Return the installed commands by name; nothing is imported."""
    return {entry.name: entry for entry in entry_points(group=COMMAND_GROUP)}


def load_command(entry: EntryPoint) -> click.Command:
    """Import a command; for one that does not load return one that says why when called."""
    try:
        command = entry.load()
    except (ImportError, AttributeError) as error:
        return broken_command(entry.name, str(error))
    if not isinstance(command, click.Command):
        return broken_command(entry.name, f"{entry.value} is not a click command")
    return command


def broken_command(name: str, reason: str) -> click.Command:
    """Make a stand-in that takes any arguments and fails with the reason."""

    def fail() -> None:
        raise click.ClickException(f"`trnrt {name}` cannot be loaded: {reason}")

    return click.Command(
        name,
        callback=fail,
        add_help_option=False,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        short_help="(cannot be loaded: call it to see why)",
    )


def print_versions(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    """Print one `package version` line for each installed trnrt package."""
    if not value or ctx.resilient_parsing:
        return
    for package, version in installed_versions().items():
        click.echo(f"{package} {version}")
    ctx.exit()


@click.group(cls=InstalledCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=print_versions,
    help="Show the version of every installed trnrt package.",
)
def trnrt() -> None:
    """Serve large open language models behind an OpenAI-compatible API."""


def main() -> None:
    """Run `trnrt`."""
    trnrt(prog_name="trnrt")
