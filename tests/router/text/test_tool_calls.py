"""Calls are told from text by position, the same for every cut of the text."""

import json

import pytest

from support.calls import Call, join_calls
from trnrt_router.text.choice import ChoiceStream, TextStream
from trnrt_router.text.markup import Section
from trnrt_router.text.tools import Tools

R, C = Section.REASONING, Section.CONTENT
SCHEMA = {
    "properties": {"s": {"type": "string"}, "t": {"type": "string"}, "n": {"type": "integer"}}
}
TOOLS = Tools([{"function": {"name": name, "parameters": SCHEMA}} for name in ("f", "find")])


def read(pieces, starts_in=C, ended="stop", **options):
    """Return (reasoning, content, calls, finish reason)."""
    stream = TextStream(starts_in=starts_in, tools=TOOLS, **options)
    deltas = []
    for piece in pieces:
        stream.push(piece)
        deltas.append(stream.take())
    stream.finish()
    deltas.append(stream.take(finish_reason=stream.finish_reason(ended)))
    return (
        "".join(delta.reasoning for delta in deltas),
        "".join(delta.content for delta in deltas),
        [(c.name, c.arguments) for c in join_calls(delta.tool_calls for delta in deltas)],
        deltas[-1].finish_reason,
    )


def read_every_cut(raw, **options):
    """Read a text in every cut and return the one answer there must be."""
    whole = read([raw], **options)
    cuts = [list(raw), *([raw[:i], raw[i:]] for i in range(1, len(raw)))]
    for pieces in cuts:
        assert read(pieces, **options) == whole
    return whole


def pair(key, value):
    return f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"


def call(name, *pairs):
    return f"<tool_call>{name}{''.join(pairs)}</tool_call>"


WHOLE = call("f", pair("s", "x"))
X = ("f", '{"s": "x"}')


@pytest.mark.parametrize(
    ("raw", "content", "calls"),
    [
        (WHOLE, "", [X]),
        (call("f"), "", [("f", "{}")]),
        (call(" \nfind\n "), "", [("find", "{}")]),
        (f"a {WHOLE} b", "a  b", [X]),
        (WHOLE * 3, "", [X] * 3),
        (f"{WHOLE}\n{WHOLE}\n", "", [X, X]),
        (f"{WHOLE}</think>\n", "", [X]),
        (f"{WHOLE}\n\nDone.\n", "\n\nDone.\n", [X]),
        (f"{WHOLE}\n<tool_call>g", "\n<tool_call>g", [X]),
        (call("f", pair(" n\n", " 7 ")), "", [("f", '{"n": 7}')]),
        (call("f", pair("n", "1"), pair("s", "")), "", [("f", '{"n": 1, "s": ""}')]),
        (call("f", pair("s", "a\n b ")), "", [("f", '{"s": "a\\n b "}')]),
        # Tags inside a value are its text.
        (call("f", pair("s", WHOLE[:-12] + "x")), "", [("f", None)]),
        (call("f", pair("s", "</arg_value>")), "", [("f", '{"s": "</arg_value>"}')]),
        (call("f", pair("s", "</arg_value> \n")), "", [("f", '{"s": "</arg_value> \\n"}')]),
        (call("f", pair("s", "</tool_call>")), "", [("f", '{"s": "</tool_call>"}')]),
        (call("f", pair("s", "</think><think>")), "", [("f", '{"s": "</think><think>"}')]),
        (call("f", pair("s", "<|user|>")), "", [("f", '{"s": "<|user|>"}')]),
        (
            call("f", pair("s", "<arg_key>k</arg_key>")),
            "",
            [("f", '{"s": "<arg_key>k</arg_key>"}')],
        ),
        # Only a declared name directly behind the tag makes a call.
        (call("g", pair("s", "x")), call("g", pair("s", "x")), []),
        (call(""), "<tool_call></tool_call>", []),
        ("a <tool_call> f is", "a <tool_call> f is", []),
        ("<tool_call>fi</tool_call>", "<tool_call>fi</tool_call>", []),
        ("<tool_call>f</arg_key>", "<tool_call>f</arg_key>", []),
        (f"<tool_call>{WHOLE}", "<tool_call>", [X]),
        (f"<tool_call>f<tool_call>find{WHOLE}", "<tool_call>f<tool_call>find", [X]),
        (f"<tool_call>{' ' * 99}f</tool_call>", f"<tool_call>{' ' * 99}f</tool_call>", []),
        ("</arg_value><arg_key>", "</arg_value><arg_key>", []),
        ("<tool_call>f<arg_value>x</tool_call>", "<tool_call>f<arg_value>x</tool_call>", []),
        # What is malformed never becomes data.
        (call("f", "<arg_key>s", pair("n", "1")), "", [("f", '{"n": 1}')]),
        (call("f", "<arg_key>s</arg_key>", pair("n", "1")), "", [("f", '{"n": 1}')]),
        (call("f", "<arg_key>s</arg_value>", pair("n", "1")), "", [("f", '{"n": 1}')]),
        (call("f", "<arg_key>s<tool_call>", pair("n", "1")), "", [("f", '{"n": 1}')]),
        (call("f", "<arg_key>s"), "", [("f", "{}")]),
        (call("f", "<arg_key>s</arg_key>"), "", [("f", "{}")]),
        (
            call("f", "<arg_key>s</arg_value> x </think><tool_call>", pair("n", "1")),
            "",
            [("f", '{"n": 1}')],
        ),
        (call("f", "<arg_key></think>s</arg_key>", "<arg_value>x</arg_value>"), "", [X]),
        (call("f", pair("s", "x"), pair("s", "y")), "", [X]),
        # A forgotten tag is made good where nothing else can be meant.
        (call("f", "<arg_key>s</arg_key>x</arg_value>"), "", [X]),
        (call("f", "<arg_key>s</arg_key> x</arg_value>"), "", [("f", '{"s": " x"}')]),
        (call("f", "<arg_key>s</arg_key></arg_value>"), "", [("f", '{"s": ""}')]),
        (call("f", "<arg_key>s<arg_value>x</arg_value>"), "", [X]),
    ],
)
def test_position_decides_what_is_a_call(raw, content, calls):
    _, found_content, found, reason = read_every_cut(raw)
    assert found_content == content
    assert [name for name, _ in found] == [name for name, _ in calls]
    for (_, arguments), (_, wanted) in zip(found, calls, strict=True):
        json.loads(arguments)
        assert wanted in (None, arguments)
    assert reason == ("tool_calls" if calls else "stop")


@pytest.mark.parametrize(
    ("raw", "reasoning", "content", "num_calls"),
    [
        (f"hm {WHOLE}", "hm ", "", 1),
        (f"hm {WHOLE}</think>so", "hm ", "so", 1),
        (
            f"a <tool_call> b <tool_call>f it</think>{WHOLE}",
            "a <tool_call> b <tool_call>f it",
            "",
            1,
        ),
        ("a <tool_call></think>b", "a <tool_call>", "b", 0),
        ("<tool_call><think>a</think>b", "<tool_call><think>a", "b", 0),
        (f"{call('g')}</think>b", call("g"), "b", 0),
        ("<arg_key></tool_call></think>b", "<arg_key></tool_call>", "b", 0),
        (f"a{call('f', pair('s', '</think>'))}", "a", "", 1),
    ],
)
def test_reasoning_ends_at_its_tag_or_at_a_call(raw, reasoning, content, num_calls):
    found = read_every_cut(raw, starts_in=R)
    assert (found[0], found[1], len(found[2])) == (reasoning, content, num_calls)


@pytest.mark.parametrize("ended", ["stop", "length"])
@pytest.mark.parametrize("starts_in", [R, C])
def test_a_call_that_is_cut_leaks_nothing_and_is_not_reported(starts_in, ended):
    raw = f"ok {call('find', pair('n', '12'), pair('s', 'ab'))}"
    cut_texts = ("", '{"n": 12', '{"n": 12, "s": "', '{"n": 12, "s": "a')
    for end in range(raw.index(">") + 1, len(raw) - 1, 2):
        reasoning, content, calls, reason = read_every_cut(
            raw[:end], starts_in=starts_in, ended=ended
        )
        assert (reasoning + content).strip() == "ok"
        assert reason == ended
        if calls:
            [(name, arguments)] = calls
            assert name == "find"
            assert arguments in (*cut_texts, '{"n": 12, "s": "ab', '{"n": 12, "s": "ab"')


def test_a_value_whose_end_was_seen_is_whole_though_its_call_is_cut():
    for value, argument in (("n", "12"), ("s", '"12"')):
        raw = f"<tool_call>f<arg_key>{value}</arg_key><arg_value>12</arg_value>\n"
        assert read_every_cut(raw, ended="length")[2] == [("f", f'{{"{value}": {argument}')]


def test_a_limit_wins_and_one_cut_call_spoils_the_reason():
    assert read_every_cut(WHOLE, ended="length")[3] == "length"
    assert read_every_cut(f"{WHOLE}{WHOLE[:-12]}")[3] == "stop"
    assert read_every_cut(f"{WHOLE}<tool_call>fi")[2:] == ([X], "tool_calls")
    # The value goes on behind its closing tag, and the call's closing tag is inside it.
    never_ends = "<tool_call>f<arg_key>s</arg_key><arg_value>a</arg_value>b</tool_call>"
    assert read_every_cut(never_ends) == (
        *("", "", [("f", '{"s": "a</arg_value>b</tool_call>')]),
        "stop",
    )


@pytest.mark.parametrize("raw", [WHOLE, f"a{WHOLE}", WHOLE[:-12], f"{WHOLE}<tool_call>f"])
def test_a_turn_token_at_the_end_is_no_text_of_a_call(raw):
    found = read_every_cut(f"{raw}<|observation|>")
    assert found == read([raw])


def test_stop_strings_act_on_the_content_alone():
    raw = f"a x{call('f', pair('s', 'STOP'))}\n{WHOLE}b STOP c{WHOLE}"
    found = read_every_cut(raw, stop=["STOP", "\n"])
    assert found == ("", "a xb ", [("f", '{"s": "STOP"}'), X], "tool_calls")
    # A call ends what the content may have begun to match.
    assert read_every_cut(f"ST{WHOLE}OP", stop=["STOP"]) == ("", "STOP", [X], "tool_calls")


def test_without_tools_calls_are_text():
    stream = TextStream(starts_in=R)
    stream.push(f"a</think>{WHOLE}")
    stream.finish()
    assert stream.take().content == WHOLE
    assert stream.finish_reason("stop") == "stop"


def test_names_come_whole_and_arguments_as_early_as_they_are_certain():
    stream = TextStream(starts_in=C, tools=TOOLS)
    shown = []
    for piece in (
        *(
            "Hi<tool_",
            "call>fi",
            "nd<arg_key>s</arg_",
            "key><arg_value>on",
            "e",
            "</arg_va",
            "lue>",
        ),
        *("<arg_key>n</arg_key><arg_value>1", "2</arg_value></tool_call", ">"),
    ):
        stream.push(piece)
        delta = stream.take()
        shown.append((delta.content, *((c.name, c.arguments) for c in delta.tool_calls)))
    assert shown == [
        ("Hi",),
        ("",),
        ("", ("find", "")),
        ("", (None, '{"s": "on')),
        ("", (None, "e")),
        ("",),
        ("",),
        ("", (None, '"')),
        ("",),
        ("", (None, ', "n": 12}')),
    ]


def test_by_ids_letters_that_spell_a_tag_are_text(tiny):
    spelled = tiny.encode_text("</arg_value></tool_call>")
    ids = [
        *tiny.encode_prompt("<tool_call>f<arg_key>s</arg_key><arg_value>"),
        *spelled,
        *tiny.encode_prompt("</arg_value></tool_call>"),
    ]
    for size in range(1, len(ids) + 1):
        stream = ChoiceStream(tiny, starts_in=C, tools=TOOLS)
        groups = [ids[start : start + size] for start in range(0, len(ids), size)]
        deltas = [*map(stream.push, groups), stream.finish("stop")]
        [found] = join_calls(delta.tool_calls for delta in deltas)
        assert found == Call("f", '{"s": "</arg_value></tool_call>"}')
        assert deltas[-1].finish_reason == "tool_calls"
        assert sum(delta.num_tokens for delta in deltas) == len(ids)


def test_half_a_character_of_a_cut_call_is_not_argument_text(tiny):
    lead = next(i for i in range(tiny.vocab_size) if tiny.token_bytes(i) == b"\xf0")
    stream = ChoiceStream(tiny, starts_in=C, tools=TOOLS)
    ids = [*tiny.encode_prompt("<tool_call>f<arg_key>s</arg_key><arg_value>x"), lead]
    [found] = join_calls([stream.push(ids).tool_calls, stream.finish("length").tool_calls])
    assert found.arguments == '{"s": "x'
