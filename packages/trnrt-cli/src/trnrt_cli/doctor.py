"""`trnrt doctor`: looks at the machine, the installed packages and a model folder."""

from __future__ import annotations

from collections import Counter

import click

from trnrt_cli.machine import Finding, Level, check_machine
from trnrt_cli.main import find_commands
from trnrt_cli.packages import COMMANDS

COLOURS = {Level.OK: "green", Level.NOTE: "yellow", Level.WRONG: "red"}


@click.command()
@click.argument("model", required=False)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8000,
    show_default=True,
    help="Port to look at.",
)
@click.pass_context
def doctor(ctx: click.Context, model: str | None, port: int) -> None:
    """Check this machine, the installed packages and, if given, a MODEL folder.

    Exit code 0: nothing stops trnrt from working. MODEL is a folder or the name of a shipped
    model (demo).
    """
    levels: Counter[Level] = Counter()
    for finding in check_machine(port=port):
        levels[finding.level] += 1
        show(finding)
    if model is not None:
        levels[verify_model(model)] += 1
    if levels[Level.WRONG]:
        raise click.ClickException(f"{levels[Level.WRONG]} of these must be put right")
    click.echo("nothing wrong found")
    ctx.exit(0)


def show(finding: Finding) -> None:
    """Print one finding."""
    level = click.style(f"{finding.level:5}", fg=COLOURS[finding.level])
    click.echo(f"{level}  {finding.subject:13}  {finding.message}")


def verify_model(model: str) -> Level:
    """Run `trnrt verify model MODEL`, which prints its own report, and judge its end."""
    entry = find_commands().get("verify")
    if entry is None:
        package, install = COMMANDS["verify"]
        show(Finding(Level.WRONG, "model", f"checking it needs {package}: {install}"))
        return Level.WRONG
    click.echo(f"\nmodel {model}")
    try:
        code = entry.load().main(["model", model], prog_name="trnrt verify", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return Level.WRONG
    except (ImportError, AttributeError) as error:
        show(Finding(Level.WRONG, "model", f"`trnrt verify` cannot be loaded: {error}"))
        return Level.WRONG
    except SystemExit as ending:
        code = ending.code
    return Level.WRONG if code else Level.OK
