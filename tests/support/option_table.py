"""The table of `docs/configuration.md`, made from the commands themselves.

`python tests/support/option_table.py` prints it; a test compares it with the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import entry_points

import click

HEADER = "| flag | environment | default | commands | meaning |\n| --- | --- | --- | --- | --- |"
TRAILING_DEFAULT = re.compile(r"\s*\[default: (.+)\]$")


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command of the installed packages by its full name, groups opened."""
    for entry in sorted(entry_points(group="trnrt.commands"), key=lambda entry: entry.name):
        yield from _open(entry.name, entry.load())


def _open(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for child, sub_command in sorted(command.commands.items()):
            yield from _open(f"{name} {child}", sub_command)
    else:
        yield name, command


def render_table() -> str:
    """Return one row for each setting; commands that share it share the row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, command in commands():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                rows.setdefault(_cells(parameter), []).append(name)
    lines = [
        f"| {flag} | {env} | {default} | {', '.join(names)} | {meaning} |"
        for (flag, env, default, meaning), names in sorted(rows.items())
    ]
    return "\n".join([HEADER, *lines])


def _cells(option: click.Option) -> tuple[str, str, str, str]:
    flag = ", ".join(f"`{spelling}`" for spelling in [*option.opts, *option.secondary_opts])
    env = f"`{option.envvar}`" if option.envvar else ""
    meaning = option.help or ""
    default = "required" if option.required else ""
    if stated := TRAILING_DEFAULT.search(meaning):
        default = stated[1]
    elif isinstance(option.default, str | int | float) and not option.is_flag:
        default = f"`{option.default}`"
    elif option.is_flag:
        default = "off"
    meaning = TRAILING_DEFAULT.sub("", meaning)
    if isinstance(option.type, click.Choice):
        choices = ", ".join(f"`{choice}`" for choice in option.type.choices)
        meaning = f"One of {choices}. {meaning}"
    return flag, env, default, meaning.strip()


if __name__ == "__main__":
    print(render_table())
