"""The registry of families: a model is read with the words it writes."""

import json

import pytest

from support.calls import Call, join_calls
from support.demo_folder import DEMO_DIR
from trnrt_router.errors import ConfigError
from trnrt_router.text.choice import TextStream
from trnrt_router.text.markup import FAMILIES, GLM, CallMarkup, Markup, Section, read_markup
from trnrt_router.text.tools import Tools

OTHER = Markup(
    think_open="[THINK]",
    think_close="[/THINK]",
    turn_tokens=("</s>",),
    calls=CallMarkup(
        call_open="[CALL]",
        call_close="[/CALL]",
        key_open="[K]",
        key_close="[/K]",
        value_open="[V]",
        value_close="[/V]",
    ),
)


def test_a_folder_is_read_with_the_words_of_its_family(tmp_path, monkeypatch):
    assert read_markup(DEMO_DIR) is GLM
    assert read_markup(tmp_path) is GLM
    monkeypatch.setitem(FAMILIES, "other", OTHER)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "other", "x": 1}))
    assert read_markup(tmp_path) is OTHER


@pytest.mark.parametrize("config", ['{"model_type": "nobody"}', "{", "[]", '{"model_type": 3}'])
def test_a_family_nobody_knows_stops_the_start(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ConfigError, match=r"config\.json"):
        read_markup(tmp_path)


def test_the_parser_knows_no_words_of_its_own():
    raw = "a <tool_call>[/THINK]b [CALL]f[K]x[/K][V]1</arg_value>[/V][/CALL]</s>"
    stream = TextStream(
        starts_in=Section.REASONING, markup=OTHER, tools=Tools([{"function": {"name": "f"}}])
    )
    for character in raw:
        stream.push(character)
    stream.finish()
    delta = stream.take()
    assert (delta.reasoning, delta.content) == ("a <tool_call>", "b ")
    assert join_calls([delta.tool_calls]) == (Call("f", '{"x": "1</arg_value>"}'),)
