"""What a model means, written in its own format and read back, is the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from support.calls import is_same_json, join_calls
from support.demo_folder import DEMO_DIR
from trnrt_router.text.chat_template import ChatTemplate
from trnrt_router.text.choice import ChoiceStream, TextStream
from trnrt_router.text.controls import PromptText, new_seam, remove_seams
from trnrt_router.text.markup import GLM, Section
from trnrt_router.text.tokenizer import Tokenizer
from trnrt_router.text.tools import Tools

TAGS = (*GLM.tags, *GLM.calls.tags)
HI = {"role": "user", "content": "hi"}
ENDS_VALUE = re.compile(r"</arg_value>\s*(<arg_key>|</tool_call>)")
LETTERS = st.text(st.characters(codec="utf-8"), max_size=6)
# Thick with tags, halves of tags and what JSON has to escape.
PIECES = LETTERS | st.sampled_from([*TAGS, *GLM.turn_tokens, *'<>"\\\n\t é😀', "</arg_", "null"])
TEXT = st.lists(PIECES, max_size=6).map("".join)
# Where tags are tags, these end a section whatever is meant.
ENDS = (GLM.think_close, *GLM.turn_tokens)
SECTION = st.lists(PIECES.filter(lambda piece: piece not in ENDS), max_size=6).map("".join)
NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,8}", fullmatch=True)
KEYS = LETTERS.map(str.strip).filter(bool)


def json_values(texts):
    scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
    finite = scalars.filter(lambda value: value not in (float("inf"), float("-inf")))
    return st.recursive(
        finite,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=5,
    )


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": TEXT,
    "integer": st.integers() | st.integers(-(10**40), 10**40),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "null": st.none(),
    "array": st.lists(json_values(TEXT), max_size=3),
    "object": st.dictionaries(TEXT, json_values(TEXT), max_size=3),
}


def reads_as_another(text: str, types: set[str]) -> bool:
    """Whether a string, written raw, is another value of one of these types to any reader."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    if isinstance(value, bool):
        return "boolean" in types
    kinds = {int: {"integer", "number"}, float: {"number"}, type(None): {"null"}}
    kinds |= {list: {"array"}, dict: {"object"}, str: set()}
    return bool(kinds[type(value)] & types)


@st.composite
def parameters(draw) -> tuple[dict[str, Any] | None, st.SearchStrategy[Any], dict[str, Any]]:
    """Draw (schema or None for undeclared, strategy of values, definitions it needs)."""
    types = draw(st.sets(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3))
    values = st.one_of([VALUES[name] for name in sorted(types)])
    form = draw(st.sampled_from(["list", "anyOf", "oneOf", "$ref", "enum", "undeclared", "allOf"]))
    definitions: dict[str, Any] = {}
    schema: dict[str, Any] | None
    members = [{"type": name} for name in sorted(types)]
    match form:
        case "list":
            schema = {"type": sorted(types)} if len(types) > 1 else dict(members[0])
        case "anyOf" | "oneOf":
            schema = {form: members, "description": "d"}
        case "allOf":
            schema = {"allOf": [{"anyOf": members}]}
        case "$ref":
            schema = {"$ref": "#/$defs/shared"}
            definitions = {"shared": {"anyOf": members}}
        case "enum":
            listed = draw(st.lists(values, min_size=1, max_size=3))
            schema = {"enum": listed}
            values, types = st.sampled_from(listed), types_in(listed)
        case _:
            schema, types = None, set(VALUES)
    if types != {"string"}:
        others = types - {"string"}
        values = values.filter(
            lambda value: not (isinstance(value, str) and reads_as_another(value, others))
        )
    return schema, values, definitions


def types_in(values: list[Any]) -> set[str]:
    names = {bool: "boolean", int: "integer", float: "number", type(None): "null"}
    names |= {str: "string", list: "array", dict: "object"}
    return {names[type(value)] for value in values}


@dataclass(frozen=True)
class Turn:
    """What a model means: thoughts, words and calls, and the tools it has."""

    tools: list[dict[str, Any]]
    reasoning: str
    content: str
    calls: list[tuple[str, dict[str, Any]]]

    @property
    def messages(self) -> list[dict[str, Any]]:
        calls = [{"function": {"name": n, "arguments": a}} for n, a in self.calls]
        answer = {"reasoning_content": self.reasoning, "content": self.content}
        return [HI, {"role": "assistant", **answer, **({"tool_calls": calls} if calls else {})}]


@st.composite
def turns(draw, sections: st.SearchStrategy[str] = TEXT) -> Turn:
    tools, values_of = [], {}
    for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)):
        known = draw(st.dictionaries(KEYS, parameters(), max_size=3))
        declared = {key: schema for key, (schema, _, _) in known.items() if schema is not None}
        root: dict[str, Any] = {"type": "object", "properties": declared, "$defs": {}}
        for key, (schema, _, definitions) in known.items():
            if definitions:  # a name of its own for every parameter's definition
                place = f"d{len(root['$defs'])}"
                root["$defs"][place] = definitions["shared"]
                declared[key] = {**(schema or {}), "$ref": f"#/$defs/{place}"}
        tools.append({"type": "function", "function": {"name": name, "parameters": root}})
        values_of[name] = {key: values for key, (_, values, _) in known.items()}
    calls = []
    for name in draw(st.lists(st.sampled_from(sorted(values_of)), max_size=3)):
        keys = [key for key in values_of[name] if draw(st.booleans())]
        calls.append((name, {key: draw(values_of[name][key]) for key in keys}))
    return Turn(tools, draw(sections), draw(sections), calls)


TEMPLATE = ChatTemplate.from_dir(DEMO_DIR)
TOKENIZER = Tokenizer.from_dir(DEMO_DIR)


def output_of(turn: Turn) -> PromptText:
    """Return the model's output as the template writes it, from behind `<think>` on."""
    start = len(TEMPLATE.render([HI], tools=turn.tools).text)
    whole = TEMPLATE.render(turn.messages, tools=turn.tools, add_generation_prompt=False)
    return PromptText(whole.text[start:], tuple(s - start for s in whole.seams if s > start))


def check(turn: Turn, deltas) -> None:
    assert "".join(delta.reasoning for delta in deltas) == turn.reasoning
    assert "".join(delta.content for delta in deltas).strip() == turn.content.strip()
    found = join_calls(delta.tool_calls for delta in deltas)
    assert [call.name for call in found] == [name for name, _ in turn.calls]
    for call, (_, arguments) in zip(found, turn.calls, strict=True):
        assert is_same_json(call.decoded, arguments)
        assert list(call.decoded) == list(arguments)
    assert deltas[-1].finish_reason == ("tool_calls" if turn.calls else "stop")


def read_ids(turn: Turn, ids: list[int], group: int):
    stream = ChoiceStream(TOKENIZER, starts_in=Section.REASONING, tools=Tools(turn.tools))
    groups = [ids[start : start + group] for start in range(0, len(ids), group)]
    return [*map(stream.push, groups), stream.finish("stop")]


def read_text(turn: Turn, pieces: list[str]):
    stream = TextStream(starts_in=Section.REASONING, tools=Tools(turn.tools))
    deltas = []
    for piece in pieces:
        stream.push(piece)
        deltas.append(stream.take())
    stream.finish()
    return [*deltas, stream.take(finish_reason=stream.finish_reason("stop"))]


def can_be_told_apart(turn: Turn) -> bool:
    """Whether the turn's texts hold no tag, as a tag, where the format gives it a meaning."""
    names = "|".join(re.escape(tool["function"]["name"]) for tool in turn.tools)
    opens = re.compile(rf"<tool_call>\s*({names})\s*(<arg_key>|</tool_call>)")
    has_call = any(opens.search(text) for text in (turn.reasoning, turn.content))
    is_repeated = turn.reasoning.lstrip().startswith("<think>")
    ends_open = re.search(r"<tool_call>\s*[A-Za-z0-9_-]*\s*$", turn.content)
    has_end = any(
        ENDS_VALUE.search(value if isinstance(value, str) else json.dumps(value))
        for _, arguments in turn.calls
        for value in arguments.values()
    )
    return not (has_call or is_repeated or ends_open or has_end)


def by_ids_texts_may_spell_any_tag(turn: Turn, group: int) -> None:
    """The template's own tags are ids; those that a text spells are letters."""
    check(turn, read_ids(turn, TOKENIZER.encode_prompt(output_of(turn)), group))


def by_ids_tags_in_texts_may_be_tags(turn: Turn, group: int) -> None:
    """Models write a tag in a value with the tag's own token: position tells them apart."""
    assume(can_be_told_apart(turn))
    seam = new_seam()
    marked = TOKENIZER.controls.break_up(output_of(turn).text, seam, keep=TAGS)
    check(turn, read_ids(turn, TOKENIZER.encode_prompt(remove_seams(marked, seam)), group))


def by_text_in_any_cut(turn: Turn, places: set[float]) -> None:
    assume(can_be_told_apart(turn))
    raw = output_of(turn).text
    cuts = sorted(int(place * len(raw)) for place in places)
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, None], strict=True)]
    for cut in ([raw], list(raw), pieces):
        check(turn, read_text(turn, cut))


GROUP = st.integers(1, 8)
WAYS = {
    by_ids_texts_may_spell_any_tag: (turns(), GROUP),
    by_ids_tags_in_texts_may_be_tags: (turns(SECTION), GROUP),
    by_text_in_any_cut: (turns(SECTION), st.sets(st.floats(0, 1), max_size=5)),
}


def read_back(way: Callable[..., None], *, examples: int) -> None:
    settings(max_examples=examples)(given(*WAYS[way])(way))()


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_reads_back(way):
    read_back(way, examples=25)


@pytest.mark.slow(minutes=5)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", WAYS)
def test_much_that_is_written_reads_back(way):
    read_back(way, examples=2000)


@pytest.mark.parametrize(
    "value", ["null", "12", "true", "[1]", "</arg_value>", "a</arg_value>\n", " x\n", "", "1e5"]
)
def test_a_declared_string_is_what_was_written(value):
    parameters = {"properties": {"s": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    turn = Turn([tool], "r", "", [("f", {"s": value})])
    check(turn, read_text(turn, list(output_of(turn).text)))
