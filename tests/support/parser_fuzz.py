"""Random model output through the parser: what must hold whatever a model writes.

A sequence is tags, names of tools, halves of both, and bytes that need not be characters. By ids
tags are single tokens; by text they are spelled, as a model without such tokens would write them.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from support.calls import Call, join_calls
from trnrt_router.text.choice import ChoiceDelta, ChoiceStream, TextStream
from trnrt_router.text.markup import GLM, Section
from trnrt_router.text.tokenizer import Tokenizer
from trnrt_router.text.tools import Tools

PARAMETERS = {
    "type": "object",
    "properties": {
        "s": {"type": "string"},
        "n": {"type": "integer"},
        "m": {"type": ["string", "null"]},
        "o": {"anyOf": [{"type": "object"}, {"type": "array"}]},
    },
}
NAMES = ("f", "find")
TOOLS = Tools([{"function": {"name": name, "parameters": PARAMETERS}} for name in NAMES])
TAGS = (*GLM.tags, *GLM.calls.tags)
# In the order that may make a call.
RUNS = (
    *(("<tool_call>", name) for name in ("f", "find", " f\n", "g", "fi")),
    *(("<arg_key>", key, "</arg_key>", "<arg_value>") for key in ("s", " n ", "m", "o", "other")),
    *(("</arg_value>", tag) for tag in ("<arg_key>", "</tool_call>", "\n")),
    ("</arg_value>", "</tool_call>"),
)
SINGLES = (
    *TAGS,
    *GLM.turn_tokens,
    *("<", "</", ">", "_call>", "arg_", " ", "\n", "x", '"', "\\", "{", "}", "[1]", "12", "null"),
    *("é", "👩‍💻", "\ufffd", "STOP", "f", "find"),
)
STRAY_BYTES = (b"\xf0", b"\x9f", b"\xff", b"\xc3", b"\x00", b"\xe2\x80")
OPENS = re.compile(rf"<tool_call>\s*({'|'.join(NAMES)})\s*(<arg_key>|</tool_call>)")
# What a stream may still owe of an object that was cut.
REST_OF_OBJECT = ("", "}", '"}', "{}")


@dataclass(frozen=True)
class Result:
    """A joined answer."""

    reasoning: str
    content: str
    calls: tuple[Call, ...]
    finish_reason: str | None


class ParserFuzz:
    """Runs sequences; raises AssertionError at the first that breaks a rule.

    Attributes:
        outcomes: how many answers there were of each kind, by ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.outcomes: Counter[str] = Counter()
        self._tokenizer = tokenizer
        self._control_ids = tokenizer.controls.ids
        id_of = {tokenizer.token_bytes(i): i for i in reversed(range(tokenizer.vocab_size))}
        self._ids = {piece: tokenizer.encode_text(piece) for piece in SINGLES}
        self._ids |= {tag: [self._control_ids[tag]] for tag in (*TAGS, *GLM.turn_tokens)}
        self._stray = [[id_of[byte] for byte in map(bytes, zip(data))] for data in STRAY_BYTES]

    def run(self, seed: int, count: int) -> None:
        rng = random.Random(seed)
        for number in range(count):
            pieces = self.draw(rng)
            options = {
                "starts_in": rng.choice((Section.REASONING, Section.CONTENT)),
                "tools": TOOLS if rng.random() < 0.9 else None,
                "stop": rng.choice(((), (), ("STOP",), ("x", "\n"))),
            }
            ended = rng.choice(("stop", "length"))
            try:
                self.check_text(pieces, rng, ended, options)
                self.check_ids(pieces, rng, ended, options)
            except Exception as error:
                where = f"seed {seed}, sequence {number}: {pieces}, {ended}, {options}"
                raise AssertionError(where) from error

    def draw(self, rng: random.Random) -> list[str]:
        """Draw calls and whatever may stand around them, then damage most of that."""
        pieces: list[str] = []
        for _ in range(rng.randrange(5)):
            kind = rng.random()
            if kind < 0.3:
                pieces += draw_call(rng)
            elif kind < 0.6:
                pieces += rng.choice(RUNS)
            else:
                pieces += rng.choices(SINGLES, k=rng.randrange(4))
        for _ in range(rng.randrange(4)):
            place = rng.randrange(len(pieces) + 1)
            if rng.random() < 0.5:
                pieces.insert(place, rng.choice(SINGLES))
            else:
                del pieces[place : place + 1]
        return pieces[: rng.randrange(len(pieces) + 1)] if rng.random() < 0.2 else pieces

    def check_text(self, pieces: list[str], rng: random.Random, ended: str, options: dict) -> None:
        text = "".join(pieces)
        whole = read_text([text], ended, options)
        cut = pieces if rng.random() < 0.4 else cut_at_random(text, rng)
        assert read_text(cut, ended, options) == whole
        check_rules(whole, ended, has_tools=options["tools"] is not None)
        check_no_tags(whole, has_tools=options["tools"] is not None)
        if not options["stop"] and GLM.calls.call_open not in text:
            assert not whole.content.endswith(GLM.turn_tokens)

    def check_ids(self, pieces: list[str], rng: random.Random, ended: str, options: dict) -> None:
        ids = [i for piece in pieces for i in self._ids.get(piece) or self._encode(piece)]
        if ids and rng.random() < 0.3:
            place = rng.randrange(len(ids))
            ids[place:place] = rng.choice(self._stray)
        whole = self.read_ids([ids], ended, options)
        is_cut = bool(whole.calls) and whole.finish_reason != "tool_calls"
        self.outcomes["cut" if is_cut else str(whole.finish_reason)] += 1
        size = rng.randint(1, 8)
        groups = [ids[start : start + size] for start in range(0, len(ids), size)]
        assert self.read_ids(groups, ended, options) == whole
        check_rules(whole, ended, has_tools=options["tools"] is not None)
        assert not any(token in whole.reasoning + whole.content for token in GLM.turn_tokens)

    def read_ids(self, groups: Sequence[Sequence[int]], ended: str, options: dict) -> Result:
        stream = ChoiceStream(self._tokenizer, **options)
        return joined([*map(stream.push, groups), stream.finish(ended)])

    def _encode(self, piece: str) -> list[int]:
        ids = self._ids[piece] = self._tokenizer.encode_text(piece)
        return ids


def draw_call(rng: random.Random) -> list[str]:
    pieces = ["<tool_call>", rng.choice(NAMES)]
    for _ in range(rng.randrange(3)):
        pieces += ("<arg_key>", rng.choice("snmo"), "</arg_key>", "<arg_value>")
        pieces += (*rng.choices(SINGLES, k=rng.randrange(4)), "</arg_value>")
    return [*pieces, "</tool_call>"]


def read_text(pieces: Sequence[str], ended: str, options: dict) -> Result:
    stream = TextStream(**options)
    deltas = []
    for piece in pieces:
        stream.push(piece)
        deltas.append(stream.take())
    stream.finish()
    return joined([*deltas, stream.take(finish_reason=stream.finish_reason(ended))])


def joined(deltas: Sequence[ChoiceDelta]) -> Result:
    return Result(
        "".join(delta.reasoning for delta in deltas),
        "".join(delta.content for delta in deltas),
        join_calls(delta.tool_calls for delta in deltas),
        deltas[-1].finish_reason,
    )


def cut_at_random(text: str, rng: random.Random) -> list[str]:
    if rng.random() < 0.2:
        return list(text)
    cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randint(1, 4)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def check_rules(result: Result, ended: str, *, has_tools: bool) -> None:
    """Names are declared, keys are clean, arguments parse or the call is reported as cut."""
    assert has_tools or not result.calls
    are_whole = True
    for number, call in enumerate(result.calls):
        assert call.name in NAMES
        arguments = decoded(call)
        if arguments is None:
            assert number == len(result.calls) - 1
            are_whole = False
            arguments = completed(call)
        assert not any(tag in key or key != key.strip() for key in arguments for tag in TAGS)
        assert isinstance(arguments.get("s", ""), str)
    if result.finish_reason == "tool_calls":
        assert result.calls
        assert are_whole
    elif result.finish_reason == "stop":
        assert not (result.calls and are_whole)
    else:
        assert result.finish_reason == ended == "length"


def check_no_tags(result: Result, *, has_tools: bool) -> None:
    """Where all tags are spelled, none is left where it means something."""
    assert GLM.think_close not in result.reasoning
    assert GLM.think_close not in result.content
    if has_tools:
        assert not OPENS.search(result.reasoning)
        # Around a call that was taken out two texts meet.
        assert result.calls or not OPENS.search(result.content)


def decoded(call: Call) -> dict | None:
    try:
        return call.decoded
    except ValueError:
        return None


def completed(call: Call) -> dict:
    """Return the object that the arguments of a cut call begin."""
    for rest in REST_OF_OBJECT:
        try:
            value = json.loads(call.arguments + rest)
        except ValueError:
            continue
        assert isinstance(value, dict)
        return value
    raise AssertionError(f"{call.arguments!r} is not the beginning of an object")
