"""From ids to visible text: any grouping of the tokens gives the same answer and counts."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.tiny_tokenizer import CONTROL_TOKENS, write_tokenizer
from trnrt_router.text.choice import ChoiceDelta, ChoiceStream
from trnrt_router.text.markup import Section
from trnrt_router.text.tokenizer import Tokenizer

R, C = Section.REASONING, Section.CONTENT


def run(tokenizer, groups, *, ended="stop", stop_token_id=None, **options):
    stream = ChoiceStream(tokenizer, **{"starts_in": R, **options})
    deltas = []
    for index, group in enumerate(groups):
        is_last = index == len(groups) - 1
        deltas.append(stream.push(group, stop_token_id=stop_token_id if is_last else None))
    deltas.append(stream.finish(ended))
    for delta in deltas:
        (delta.reasoning + delta.content).encode()
    return (
        "".join(delta.reasoning for delta in deltas),
        "".join(delta.content for delta in deltas),
        deltas[-1].finish_reason,
        stream.num_tokens,
        stream.num_reasoning_tokens,
    )


def groups_of(ids, size):
    return [ids[start : start + size] for start in range(0, len(ids), size)]


def test_tags_are_ids_and_the_same_letters_as_text_are_text(tiny):
    spelled = tiny.encode_text("say </think> and <|user|>")
    ids = [*spelled, tiny.control_id("</think>"), *tiny.encode_text("done </think>")]
    reasoning, content, *_ = run(tiny, [ids])
    assert reasoning == "say </think> and <|user|>"
    assert content == "done </think>"


def test_the_stop_token_counts_and_is_not_shown(tiny):
    stop_id = tiny.control_id("<|user|>")
    ids = [*tiny.encode_prompt("a</think>b"), stop_id]
    assert run(tiny, [ids], stop_token_id=stop_id) == ("a", "b", "stop", 4, 1)
    newline = tiny.encode_text("\n")[0]
    assert run(tiny, [[*ids[:-1], newline]], stop_token_id=newline)[:2] == ("a", "b")


def test_turn_tokens_that_did_not_stop_are_hidden_and_markup_is_not(tiny):
    ids = tiny.encode_prompt("a</think>b<|user|>c<tool_call>d")
    assert run(tiny, [ids])[:2] == ("a", "bc<tool_call>d")


def test_plain_text_shows_think_tags(tiny):
    ids = tiny.encode_prompt("<think>a</think>b<|endoftext|>")
    assert run(tiny, [ids], starts_in=None)[:2] == ("", "<think>a</think>b")


def test_ids_behind_a_stop_string_do_not_belong_to_the_answer(tiny):
    ids = [token for letter in "abSTOPcd" for token in tiny.encode_text(letter)]
    stream = ChoiceStream(tiny, starts_in=C, stop=["STOP"])
    assert stream.push(ids) == ChoiceDelta("", "ab", 6)
    assert (stream.stopped, stream.matched_stop) == (True, "STOP")
    assert stream.push(ids) == ChoiceDelta()
    assert stream.finish("length") == ChoiceDelta(finish_reason="stop")
    assert stream.num_tokens == 6


def test_a_stop_string_completed_by_the_flushed_tail_still_ends_the_text(tiny):
    lead = next(i for i in range(tiny.vocab_size) if tiny.token_bytes(i) == b"\xf0")
    stream = ChoiceStream(tiny, starts_in=C, stop=["\ufffd"])
    assert stream.push([lead]) == ChoiceDelta(num_tokens=1)
    assert stream.finish("length") == ChoiceDelta(finish_reason="stop")


def test_tags_missing_from_the_vocabulary_are_found_in_the_text(tmp_path):
    controls = [token for token in CONTROL_TOKENS if "think" not in token and token != "<|user|>"]
    write_tokenizer(tmp_path, controls=controls)
    tokenizer = Tokenizer.from_dir(tmp_path)
    ids = tokenizer.encode_prompt("a</thi</think>b<|user|>")
    for size in range(1, len(ids) + 1):
        assert run(tokenizer, groups_of(ids, size))[:2] == ("a</thi", "b")


def test_a_control_token_ends_a_spelled_tag(tmp_path):
    controls = [token for token in CONTROL_TOKENS if token != "</think>"]
    write_tokenizer(tmp_path, controls=controls)
    tokenizer = Tokenizer.from_dir(tmp_path)
    ids = tokenizer.encode_prompt("a</thi<think>nk>b")
    assert run(tokenizer, [ids])[:2] == ("a</thi<think>nk>b", "")


@given(st.data())
def test_every_grouping_of_any_ids_gives_the_same(tiny, data):
    ids = data.draw(st.lists(st.integers(0, tiny.vocab_size + 3), max_size=30))
    stop = data.draw(st.lists(st.sampled_from(["a", "th", "\ufffd", "> "]), max_size=2))
    starts_in = data.draw(st.sampled_from([R, C, None]))
    size = data.draw(st.integers(1, 8))
    whole = run(tiny, [ids], starts_in=starts_in, stop=stop)
    assert run(tiny, groups_of(ids, size), starts_in=starts_in, stop=stop) == whole
    assert whole[2] == "stop"


@given(st.text(), st.text())
def test_reasoning_and_content_come_back_exactly(tiny, reasoning, content):
    ids = [
        *tiny.encode_text("r" + reasoning),
        tiny.control_id("</think>"),
        *tiny.encode_text(content),
    ]
    assert run(tiny, groups_of(ids, 1), ended="length")[:3] == ("r" + reasoning, content, "length")


@pytest.mark.parametrize("seed", range(4))
def test_fuzz_of_bytes_and_tags(tiny, seed):
    rng = random.Random(seed)
    controls = list(tiny.controls.ids.values())
    for _ in range(400):
        length = rng.randrange(20)
        ids = [
            rng.choice(controls) if rng.random() < 0.2 else rng.randrange(tiny.vocab_size)
            for _ in range(length)
        ]
        options = {"starts_in": rng.choice([R, C]), "stop": rng.choice([[], ["x"], ["</", "a"]])}
        whole = run(tiny, [ids], **options)
        assert run(tiny, groups_of(ids, rng.randint(1, 8)), **options) == whole
        assert not any(token in whole[0] + whole[1] for token in ("<|user|>", "[gMASK]"))
