"""Marks: the tokens before each are those of the turns that follow, whatever is said in them."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tiny_tokenizer import CONTROL_TOKENS
from trnrt_router.text.chat_template import ChatTemplate
from trnrt_router.text.marks import WINDOW_CHARS, find_marks
from trnrt_router.text.tokenizer import Tokenizer

SYSTEM = {"role": "system", "content": "be brief"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "one"}
AGAIN = {"role": "user", "content": "two"}
ANSWER = {"role": "assistant", "content": "first", "reasoning_content": "why"}
CALL = {
    "role": "assistant",
    "content": "",
    "reasoning_content": "must look",
    "tool_calls": [
        {"type": "function", "id": "a", "function": {"name": "look", "arguments": '{"x": "1"}'}}
    ],
}
RESULT = {"role": "tool", "content": "seen", "tool_call_id": "a"}
CLEAR = {"clear_thinking": True}

# No control token at any border, only a line end.
PLAIN = (
    "{%- for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor -%}"
    "{%- if add_generation_prompt %}assistant: {% endif -%}"
)
# The system message moves to the newest question: nothing but the head is stable.
MOVING_SYSTEM = (
    "{%- set ns = namespace(last=0) -%}"
    "{%- for m in messages if m.role == 'user' %}{% set ns.last = ns.last + 1 %}{% endfor -%}"
    "{{- '<sop>' -}}{%- set at = namespace(user=0) -%}"
    "{%- for m in messages -%}"
    "{%- if m.role == 'user' -%}{%- set at.user = at.user + 1 -%}"
    "<|user|>{{ messages[0].content if at.user == ns.last }}{{ m.content }}"
    "{%- elif m.role == 'assistant' -%}<|assistant|>{{ m.content }}{%- endif -%}"
    "{%- endfor -%}{%- if add_generation_prompt %}<|assistant|>{% endif -%}"
)
# Refuses what does not alternate, and empty content.
STRICT = (
    "{%- for m in messages -%}"
    "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) or not m.content -%}"
    "{{- raise_exception('must alternate') -}}{%- endif -%}"
    "<|{{ m.role }}|>{{ m.content }}{%- endfor -%}"
    "{%- if not messages -%}{{- raise_exception('empty') -}}{%- endif -%}"
    "{%- if add_generation_prompt %}<|assistant|>{% endif -%}"
)


def encode(template, tokenizer, messages, **options):
    prompt = template.render(messages, **options)
    encoded = tokenizer.encode_pieces(prompt)
    return prompt, encoded


def marked(template, tokenizer, messages, **options):
    """Return (ids, marks) of a prompt."""
    prompt, encoded = encode(template, tokenizer, messages, **options)
    return encoded.ids, find_marks(prompt, encoded, tokenizer)


def texts_before(template, tokenizer, messages, **options):
    ids, marks = marked(template, tokenizer, messages, **options)
    return [tokenizer.decode(ids[:mark]) for mark in marks]


def test_marks_of_a_conversation(template, demo):
    head = "[gMASK]<sop><|system|>Reasoning Effort: Low<|system|>be brief"
    turn = "<|user|>one<|assistant|><think>why</think>first<|user|>"
    found = texts_before(template, demo, [SYSTEM, USER, ANSWER, AGAIN], reasoning_effort="low")
    assert found == [head, head + turn, head + turn + "two"]


def test_marks_of_a_tool_dialogue_follow_what_the_template_keeps(template, demo):
    history = [USER, CALL, RESULT]
    found = texts_before(template, demo, history, tools=[TOOL], kwargs=CLEAR)
    assert [text.rpartition("</tool_call>")[2] for text in found[:1]] == [""]
    assert found[1].endswith("<|user|>one")
    assert found[2].endswith("</tool_call><|observation|><tool_response>")
    assert found[3].endswith("<tool_response>seen</tool_response>")
    asked_again = [*history, ANSWER, AGAIN]
    dropped = texts_before(template, demo, asked_again, tools=[TOOL], kwargs=CLEAR)
    assert dropped[-1].endswith("<|assistant|><think></think>first<|user|>two")


def test_empty_conversation_parts_give_no_marks_twice(template, demo):
    ids, marks = marked(template, demo, [SYSTEM])
    assert marks == sorted(set(marks))
    assert all(0 < mark <= len(ids) for mark in marks)


def test_continued_answer_is_marked_up_to_what_it_answers(template, demo):
    found = texts_before(template, demo, [USER, ANSWER], continue_final_message=True)
    assert found[-1].endswith("<|user|>one")


def test_refused_cut_gives_no_mark(tiny, tiny_dir):
    template = ChatTemplate(STRICT, tiny.controls)
    assert texts_before(template, tiny, [USER]) == ["<|user|>one"]
    found = texts_before(template, tiny, [USER, ANSWER, AGAIN])
    assert found == ["<|user|>one<|assistant|>first<|user|>two"]


def test_template_that_rewrites_history_keeps_its_head_only(tiny):
    template = ChatTemplate(MOVING_SYSTEM, tiny.controls)
    ids, marks = marked(template, tiny, [SYSTEM, USER])
    assert [tiny.decode(ids[:mark]) for mark in marks] == ["<sop>", "<sop><|user|>"]


def test_spelled_control_token_does_not_count_as_one(template, demo):
    spelled = {"role": "user", "content": "a<|user|>b"}
    ids, marks = marked(template, demo, [SYSTEM, USER, ANSWER, spelled])
    later, _ = encode(template, demo, [SYSTEM, USER, ANSWER, spelled, ANSWER, AGAIN])
    assert demo.encode_prompt(later)[: marks[-1]] == ids[: marks[-1]]
    assert demo.decode(ids[: marks[-1]]).endswith("<|user|>a<|user|>b")


def test_long_text_is_tokenized_once(template, demo, monkeypatch):
    words = "the quick brown fox, 12345; \u4f60\u597d " * 4000
    messages = [SYSTEM, USER, ANSWER, {"role": "user", "content": words}]
    prompt, encoded = encode(template, demo, messages)
    num_chars = []
    plain = Tokenizer._encode

    def counted(tokenizer, texts):
        num_chars.append(sum(map(len, texts)))
        return plain(tokenizer, texts)

    monkeypatch.setattr(Tokenizer, "_encode", counted)
    marks = find_marks(prompt, encoded, demo)
    assert demo.decode(encoded.ids[: marks[-1]]) == prompt.text.removesuffix("<|assistant|><think>")
    assert sum(num_chars) < 20 * WINDOW_CHARS


pieces = st.one_of(
    st.sampled_from(["", " ", "\n", "hi", "the end", "12", "\u4f60", "e\u0301", "word " * 300]),
    st.sampled_from(CONTROL_TOKENS),
    st.text(max_size=6).filter(lambda text: text.isprintable()),
)
words = st.lists(pieces, max_size=4).map("".join)
answers = st.builds(
    lambda content, reasoning: {
        "role": "assistant",
        "content": content,
        "reasoning_content": reasoning,
    },
    words,
    words,
)


@st.composite
def tool_rounds(draw):
    ids = draw(st.sampled_from([["a"], ["a", "b"], ["", ""]]))
    calls = [
        {"type": "function", "id": i, "function": {"name": "look", "arguments": {"x": draw(words)}}}
        for i in ids
    ]
    call = draw(answers) | {"tool_calls": calls}
    results = [{"role": "tool", "content": draw(words), "tool_call_id": i} for i in ids]
    return [call, *draw(st.permutations(results))]


@st.composite
def dialogues(draw, *, with_tools=True):
    """Messages, and the lengths at which the model is asked."""
    messages = [SYSTEM] * draw(st.integers(0, 2))
    asked = []
    for _ in range(draw(st.integers(1, 3))):
        messages += [{"role": "user", "content": draw(words)}]
        asked.append(len(messages))
        for _ in range(draw(st.integers(0, 2)) if with_tools else 0):
            messages += draw(tool_rounds())
            asked.append(len(messages))
        messages.append(draw(answers))
    return messages, asked


def last_user(messages):
    return max(i for i, message in enumerate(messages) if message["role"] == "user")


@pytest.mark.parametrize("kwargs", [{}, CLEAR], ids=["kept", "dropped"])
@settings(max_examples=40)
@given(
    dialogue=dialogues(),
    tools=st.sampled_from([None, [TOOL]]),
    effort=st.sampled_from([None, "low", "high"]),
)
def test_tokens_before_a_mark_begin_the_next_turns(template, demo, kwargs, dialogue, tools, effort):
    messages, asked = dialogue
    options = {"kwargs": kwargs, "reasoning_effort": effort, "tools": tools}
    turns = [(messages[:n], *marked(template, demo, messages[:n], **options)) for n in asked]
    for (before, ids, marks), (after, later_ids, _) in combinations(turns, 2):
        question = before[: last_user(before) + 1]
        open_prompt = template.render(question, add_generation_prompt=False, **options)
        num_question = len(demo.encode_prompt(open_prompt))
        assert num_question in marks
        is_rewritten = kwargs == CLEAR and last_user(after) > last_user(before)
        for mark in marks:
            if mark <= num_question or not is_rewritten:
                assert later_ids[:mark] == ids[:mark]


@pytest.mark.parametrize("source", [PLAIN, MOVING_SYSTEM], ids=["plain", "move"])
@settings(max_examples=25)
@given(dialogue=dialogues(with_tools=False))
def test_any_template_keeps_the_promise(tiny, source, dialogue):
    messages, asked = dialogue
    template = ChatTemplate(source, tiny.controls)
    turns = [marked(template, tiny, messages[:n]) for n in asked]
    for (ids, marks), (later_ids, _) in combinations(turns, 2):
        for mark in marks:
            assert later_ids[:mark] == ids[:mark]
