from __future__ import annotations

import json

import pytest

from support.live_router import events_of
from support.scripted_engine import Script

URL = "/v1/completions"


def ask(rig, **fields):
    return rig.http.post(URL, json={"model": "glm", "prompt": "hi", **fields})


def stream(rig, **fields):
    body = {"model": "glm", "prompt": "hi", "stream": True, **fields}
    with rig.http.stream("POST", URL, json=body) as response:
        assert response.status_code == 200
        return list(events_of(response))


def prompts_seen(rig):
    return [request.token_ids for engine in rig.engines for request in engine.requests]


def test_text_is_not_parsed_for_reasoning(rig):
    rig.say("let me see</think>hello")
    reply = ask(rig).json()
    assert reply["object"] == "text_completion"
    [choice] = reply["choices"]
    assert choice == {
        "index": 0,
        "text": "let me see</think>hello",
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_at_most_sixteen_tokens_unless_asked_otherwise(rig):
    rig.play(Script(steps=rig.words.tokens("word "), repeat=True))
    assert ask(rig).json()["usage"]["completion_tokens"] == 16
    assert ask(rig, max_tokens=40).json()["usage"]["completion_tokens"] == 40


@pytest.mark.parametrize(
    "prompt",
    ["hello you", ["hello you"], [5, 6, 7], [[5, 6, 7]], [5.0, 6, 7]],
    ids=["text", "texts", "ids", "lists", "floats"],
)
def test_prompt_spellings(rig, prompt):
    rig.say("ok")
    assert ask(rig, prompt=prompt).status_code == 200
    expected = rig.words.tokenizer.encode_text("hello you") if "hello" in str(prompt) else [5, 6, 7]
    assert prompts_seen(rig) == [expected]


def test_control_tokens_in_a_prompt_are_plain_text(rig):
    rig.say("ok")
    ask(rig, prompt="<|user|>")
    [ids] = prompts_seen(rig)
    assert rig.words.eos not in ids


def test_several_prompts_with_n_are_indexed_prompt_first(rig):
    def by_prompt(request):
        name = f"p{request.token_ids[0]} c{request.choice_index}"
        return Script(steps=[*rig.words.tokens(name), [rig.words.eos]])

    for engine in rig.engines:
        engine.script_for = by_prompt
    reply = ask(rig, prompt=[[5], [6, 7]], n=2).json()
    assert [(c["index"], c["text"]) for c in reply["choices"]] == [
        (0, "p5 c0"),
        (1, "p5 c1"),
        (2, "p6 c0"),
        (3, "p6 c1"),
    ]
    assert reply["usage"]["prompt_tokens"] == 3


def test_stream_with_usage_and_two_choices(rig):
    rig.say("one two")
    events = stream(rig, n=2, stream_options={"include_usage": True})
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    for index in range(2):
        own = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert "".join(c["text"] for c in own) == "one two"
        assert [c["finish_reason"] for c in own if c["finish_reason"]] == ["stop"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == (
        chunks[-1]["usage"]["prompt_tokens"] + chunks[-1]["usage"]["completion_tokens"]
    )
    assert [bool(chunk.get("usage")) for chunk in chunks].count(True) == 1


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_logprobs_are_parallel_lists(rig, is_stream):
    rig.say("one two")
    if is_stream:
        chunks = [json.loads(event) for event in stream(rig, logprobs=2)[:-1]]
        parts = [c["logprobs"] for chunk in chunks for c in chunk["choices"]]
        logprobs = {key: [e for part in parts for e in part[key]] for key in parts[0]}
    else:
        logprobs = ask(rig, logprobs=2).json()["choices"][0]["logprobs"]
    tokens = [rig.words.tokenizer.token_text(i) for [i] in rig.words.tokens("one two")]
    assert logprobs["tokens"][:-1] == tokens
    assert len(logprobs["token_logprobs"]) == len(tokens) + 1
    assert logprobs["text_offset"][:-1] == [len("".join(tokens[:i])) for i in range(len(tokens))]
    assert all(token in top for token, top in zip(tokens, logprobs["top_logprobs"], strict=False))


def test_zero_logprobs_are_the_chosen_tokens_alone(rig):
    rig.say("one two")
    logprobs = ask(rig, logprobs=0, max_tokens=2).json()["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == 2
    assert logprobs["top_logprobs"] is None
    assert logprobs["text_offset"][0] == 0


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [5, "x"]}, "prompt"),
        ({"prompt": [[5], "x"]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**9]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ["x"] * 200}, "n"),
        ({"echo": True}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else value,
)
def test_bad_request_names_the_field_and_reaches_no_engine(rig, fields, param):
    response = ask(rig, **fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert prompts_seen(rig) == []


def test_values_that_ask_for_what_happens_anyway_are_accepted(rig):
    rig.say("ok")
    fields = {"echo": False, "best_of": 1, "suffix": None, "user": "me"}
    response = ask(rig, **fields)
    assert response.status_code == 200
    assert "x-trnrt-ignored-fields" not in response.headers
