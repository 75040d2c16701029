"""Which texts are, and which may become, the name of a tool."""

import pytest

from trnrt_router.text.tools import MAX_NAME_BLANKS, Tools

TOOLS = Tools([{"function": {"name": name}} for name in ("get", "get_weather", "two words", " x ")])


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        ("get", "get"),
        ("\n get_weather \n", "get_weather"),
        ("x", " x "),
        ("two words", "two words"),
        ("get_", None),
        ("Get", None),
        ("", None),
    ],
)
def test_names_are_trimmed_and_otherwise_exact(text, tool):
    found = TOOLS.find(text)
    assert (found and found.name) == tool


@pytest.mark.parametrize(
    ("text", "may"),
    [
        *[
            (text, True)
            for text in ("", "\n ", "g", "get", "get\n ", " get_w", "two ", "two words ")
        ],
        *[(text, False) for text in ("got", "get me", "get_weather2", "words", "two words x")],
        (" " * MAX_NAME_BLANKS + "get", True),
        (" " * 200, False),
        ("get" + "\n" * 200, False),
    ],
)
def test_text_waits_only_while_it_may_become_a_name(text, may):
    assert TOOLS.may_become_name(text) is may


def test_no_tool_has_no_name():
    assert not Tools([]).may_become_name("a")
    assert Tools([]).find("") is None
