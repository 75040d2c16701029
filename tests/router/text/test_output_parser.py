"""Sections are told apart by position, the same for every cut of the text."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trnrt_router.text.choice import TextStream
from trnrt_router.text.markup import GLM, Section
from trnrt_router.text.tag_scanner import TagScanner

R, C = Section.REASONING, Section.CONTENT


def read(pieces, starts_in=R, **options):
    stream = TextStream(starts_in=starts_in, **options)
    for piece in pieces:
        stream.push(piece)
    stream.finish()
    delta = stream.take()
    return delta.reasoning, delta.content


@pytest.mark.parametrize(
    ("starts_in", "raw", "reasoning", "content"),
    [
        (R, "a</think>b", "a", "b"),
        (R, "never closed", "never closed", ""),
        (R, "</think>b", "", "b"),
        (R, "<think>a</think>b", "a", "b"),
        (R, " \n<think><think>a</think>b", " \na", "b"),
        (R, "say <think> now</think>b", "say <think> now", "b"),
        (R, "a</think>b</think>c</think>", "a", "bc"),
        (R, "a</think><think>b", "a", "<think>b"),
        (R, "a </thin", "a </thin", ""),
        (R, "a</think>b<|user|>", "a", "b"),
        (R, "a</think>b<|user|><|endoftext|>", "a", "b"),
        (R, "a<|observation|>", "a", ""),
        (R, "a</think>b<|us", "a", "b<|us"),
        (R, "the <|user|> token</think>is <|user|> too", "the <|user|> token", "is <|user|> too"),
        (R, "x<|user|></think>y", "x<|user|>", "y"),
        (R, "<tool_call>f</tool_call>", "<tool_call>f</tool_call>", ""),
        (C, "plain <think> a</think>", "", "plain <think> a"),
        (C, "1 < 2 <|u> <", "", "1 < 2 <|u> <"),
        (None, "a<think>b</think><|user|>", "", "a<think>b</think><|user|>"),
    ],
)
def test_position_decides_what_a_tag_means(starts_in, raw, reasoning, content):
    cuts = [[raw], list(raw), *([raw[:i], raw[i:]] for i in range(len(raw) + 1))]
    assert {read(pieces, starts_in) for pieces in cuts} == {(reasoning, content)}


def test_text_that_could_begin_a_tag_is_held_only_until_it_cannot():
    stream = TextStream(starts_in=R)
    shown = []
    for piece in ("a</thi", "n", "g", "</think", ">b"):
        stream.push(piece)
        delta = stream.take()
        shown.append((delta.reasoning, delta.content))
    assert shown == [("a", ""), ("", ""), ("</thing", ""), ("", ""), ("", "b")]


def test_stop_strings_sleep_in_the_reasoning_and_do_not_reach_across():
    assert read(["Q: a</think>b Q:c"], stop=["Q:"]) == ("Q: a", "b ")
    assert read(["aQ</think>: b"], stop=["Q:"]) == ("aQ", ": b")


def test_a_held_tag_start_can_still_complete_a_stop_string():
    assert read(["b</"], C, stop=["</"]) == ("", "b")


TAGS = (*GLM.tags, *GLM.turn_tokens)
PIECES = st.lists(st.sampled_from([*TAGS, "<", "</", ">", "|", "think", " ", "é", "x"]))


@given(PIECES, st.data())
def test_the_scanner_loses_and_invents_nothing(pieces, data):
    text = "".join(pieces)
    scanner = TagScanner(TAGS)
    found = [piece for part in pieces for piece in scanner.push(part)] + [scanner.finish()]
    assert "".join(found) == text
    whole = TagScanner(TAGS)
    at_once = [*whole.push(text), whole.finish()]
    assert [p for p in found if p in TAGS] == [p for p in at_once if p in TAGS]


@given(PIECES, st.sampled_from([R, C]), st.lists(st.sampled_from(["x<", "é", "> "]), max_size=2))
def test_every_cut_gives_the_same(pieces, starts_in, stop):
    text = "".join(pieces)
    expected = read([text], starts_in, stop=stop)
    assert read(pieces, starts_in, stop=stop) == expected
    assert read(text, starts_in, stop=stop) == expected


def test_fuzz_of_tags_and_letters_never_leaks_a_closing_tag():
    rng = random.Random(7)
    alphabet = [*TAGS, *"<>/|x \n", "think", "👩‍💻", "\ufffd"]
    for _ in range(3000):
        pieces = rng.choices(alphabet, k=rng.randrange(12))
        text = "".join(pieces)
        starts_in = rng.choice([R, C])
        reasoning, content = read(pieces, starts_in)
        assert (reasoning, content) == read([text], starts_in) == read(text, starts_in)
        assert GLM.think_close not in reasoning
        assert not content.endswith(GLM.turn_tokens)
