"""`docs/configuration.md` holds every setting of every command, and no other."""

from __future__ import annotations

import re

from support.option_table import commands, render_table
from support.source_tree import ROOT
from trnrt_kernels.serving import OPTIONS

PAGE = (ROOT / "docs/configuration.md").read_text("utf-8")


def test_page_holds_the_table_the_commands_make() -> None:
    table = render_table()
    assert table in PAGE, f"docs/configuration.md is not up to date; its table must be:\n{table}"


def test_every_serving_option_is_in_the_table_with_its_variable_and_default() -> None:
    for option in OPTIONS.values():
        (row,) = re.findall(rf"^\| `{option.flag}` \| `{option.env_name}` .*$", PAGE, re.MULTILINE)
        assert option.default is None or f"`{option.default}`" in row
        assert "engine" in row
        assert "serve" in row


def test_every_option_says_what_it_does() -> None:
    silent = [
        f"{name} {parameter.opts[0]}"
        for name, command in commands()
        for parameter in command.params
        if parameter.param_type_name == "option" and not getattr(parameter, "help", None)
    ]
    assert silent == []
