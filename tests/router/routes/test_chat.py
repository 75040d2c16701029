from __future__ import annotations

import json

import httpx
import pytest

from support.live_router import events_of
from support.scripted_engine import Script
from trnrt_engine.api import RequestProgress
from trnrt_engine.errors import EngineOverloaded

URL = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


def ask(rig, **fields):
    return rig.http.post(URL, json={"model": "glm", "messages": HI, **fields})


def stream(rig, **fields):
    """Return (status, headers, events) of a streamed answer, read to its end."""
    body = {"model": "glm", "messages": HI, "stream": True, **fields}
    with rig.http.stream("POST", URL, json=body) as response:
        return response.status_code, response.headers, list(events_of(response))


def chunks_of(events):
    return [json.loads(event) for event in events if event[0] not in ":["]


def choices_of(events):
    return [choice for chunk in chunks_of(events) for choice in chunk["choices"]]


def deltas_of(events, index=0):
    return [choice["delta"] for choice in choices_of(events) if choice["index"] == index]


def joined(events, field, index=0):
    return "".join(delta.get(field, "") for delta in deltas_of(events, index))


def test_answer_is_split_into_reasoning_and_content(rig):
    rig.say("let me see</think>hello there")
    reply = ask(rig).json()
    assert reply["object"] == "chat.completion"
    assert reply["model"] == "glm"
    [choice] = reply["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "hello there",
        "reasoning_content": "let me see",
    }
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None


def test_stream_says_the_same_in_pieces(rig):
    rig.say("let me see</think>hello there")
    status, headers, events = stream(rig)
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert joined(events, "reasoning_content") == "let me see"
    assert joined(events, "content") == "hello there"
    assert events[-1] == "[DONE]"
    first, *later = deltas_of(events)
    assert first["role"] == "assistant"
    assert not any("role" in delta for delta in later)
    assert all(value is not None for delta in later for value in delta.values())
    reasons = [
        choice["finish_reason"] for chunk in chunks_of(events) for choice in chunk["choices"]
    ]
    assert reasons[-1] == "stop"
    assert not any(reasons[:-1])
    assert not any("usage" in chunk for chunk in chunks_of(events))


def test_usage_counts_every_token_once(rig):
    rig.say("abc</think>abc", num_cached_tokens=64)
    usage = ask(rig).json()["usage"]
    per_part = len(rig.words.tokens("abc"))
    prompt = len(rig.engines[0].requests[0].token_ids)
    assert usage == {
        "prompt_tokens": prompt,
        "completion_tokens": 2 * per_part + 2,
        "total_tokens": prompt + 2 * per_part + 2,
        "prompt_tokens_details": {"cached_tokens": 64},
        "completion_tokens_details": {"reasoning_tokens": per_part},
    }


def test_usage_chunk_is_last_and_only_when_asked_for(rig):
    rig.say("a</think>b")
    expected = ask(rig).json()["usage"]
    events = stream(rig, stream_options={"include_usage": True})[2]
    *earlier, last = chunks_of(events)
    assert last["choices"] == []
    assert last["usage"] == expected
    assert not any(chunk.get("usage") for chunk in earlier)
    assert events[-1] == "[DONE]"


def test_continuous_usage_grows_with_every_chunk(rig):
    rig.say("a</think>b c d")
    events = stream(rig, stream_options={"continuous_usage_stats": True})[2]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks_of(events)]
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == len(rig.words.tokens("a</think>b c d")) + 1


def test_choices_are_independent_and_seeded_by_their_index(rig):
    script = {n: rig.words.tokens(f"t</think>answer {n}") for n in range(3)}

    def by_choice(request):
        return Script(steps=[*script[request.choice_index], [rig.words.eos]])

    for engine in rig.engines:
        engine.script_for = by_choice
    reply = ask(rig, n=3, seed=5).json()
    contents = [choice["message"]["content"] for choice in reply["choices"]]
    assert contents == ["answer 0", "answer 1", "answer 2"]
    requests = next(engine.requests for engine in rig.engines if engine.requests)
    assert [request.choice_index for request in requests] == [0, 1, 2]
    assert {request.sampling.seed for request in requests} == {5}
    assert reply["usage"]["completion_tokens"] == sum(len(steps) + 1 for steps in script.values())

    events = stream(rig, n=3)[2]
    assert [joined(events, "content", n) for n in range(3)] == contents
    ends = [
        c["index"] for chunk in chunks_of(events) for c in chunk["choices"] if c["finish_reason"]
    ]
    assert sorted(ends) == [0, 1, 2]
    assert events.count("[DONE]") == 1


def test_stop_string_ends_the_answer_and_the_engine_request(rig):
    rig.play(Script(steps=rig.words.tokens("t</think>one two STOP three "), repeat=True))
    reply = ask(rig, stop=["never", "STOP"]).json()
    assert reply["choices"][0]["message"]["content"] == "one two "
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"]["completion_tokens"] == len(rig.words.tokens("t</think>one two STOP"))
    rig.router.wait_until(lambda: len(rig.aborted()) == 1)
    events = stream(rig, stop="STOP", include_stop_str_in_output=True)[2]
    assert joined(events, "content") == "one two STOP"


def test_length_is_told_and_wins(rig):
    rig.play(Script(steps=rig.words.tokens("t</think>one two three four"), repeat=True))
    reply = ask(rig, max_completion_tokens=6).json()
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_logprobs_have_one_entry_per_sampled_token(rig, is_stream):
    rig.say("a</think>b c")
    asked = {"logprobs": True, "top_logprobs": 2}
    if is_stream:
        choices = choices_of(stream(rig, **asked)[2])
        entries = [e for c in choices for e in (c.get("logprobs") or {}).get("content", [])]
    else:
        entries = ask(rig, **asked).json()["choices"][0]["logprobs"]["content"]
    ids = [i for step in rig.words.tokens("a</think>b c") for i in step] + [rig.words.eos]
    assert [entry["token"] for entry in entries] == [rig.words.tokenizer.token_text(i) for i in ids]
    assert all(len(entry["top_logprobs"]) == 2 for entry in entries)
    assert bytes(entries[0]["bytes"]) == b"a"
    assert entries[0]["logprob"] == -0.25


def test_logprobs_without_alternatives(rig):
    rig.say("a</think>b")
    content = ask(rig, logprobs=True, top_logprobs=0).json()["choices"][0]["logprobs"]["content"]
    assert {tuple(entry["top_logprobs"]) for entry in content} == {()}


def test_unknown_fields_are_accepted_and_named(rig):
    rig.say("a</think>b")
    response = ask(rig, made_up=1, **{"and\r\nanother": 2})
    assert response.status_code == 200
    assert response.headers["x-trnrt-ignored-fields"] == "and%0D%0Aanother, made_up"


def test_replaced_value_is_told_in_a_header(rig):
    rig.say("a</think>b")
    response = ask(rig, reasoning_effort="medium")
    assert "medium" in response.headers["x-trnrt-warnings"]


def test_request_id_is_echoed_or_made(rig):
    rig.say("a</think>b")
    body = {"model": "glm", "messages": HI}
    given = rig.http.post(URL, json=body, headers={"X-Request-ID": "mine-1"})
    assert given.headers["x-request-id"] == "mine-1"
    assert len(ask(rig).headers["x-request-id"]) > 8


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages.0.role"),
        ({"n": 0}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": 10_000}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"stop": [""]}, "stop.0"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"99999999": 1}}, "logit_bias"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"functions": []}, "functions"),
        ({"reasoning_effort": "none"}, "reasoning_effort"),
        ({"session_id": 5}, "session_id"),
        ({"session_id": "x" * 1000}, "session_id"),
        ({"priority": 2**40}, "priority"),
        ({"model": "other"}, "model"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else value,
)
def test_bad_request_names_the_field_and_reaches_no_engine(rig, fields, param):
    response = ask(rig, **fields)
    assert response.status_code == (404 if param == "model" else 400), response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    assert error["code"]
    assert not any(engine.requests for engine in rig.engines)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b"{null: 1}",
        b'{"messages": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"messages": [{"role": "user", "content": "x"}], "seed": 1e400}',
    ],
    ids=["empty", "cut", "list", "null", "surrogate", "bytes", "null-key", "deep", "huge-number"],
)
def test_body_that_is_no_request_is_the_clients_fault(rig, body):
    response = rig.http.post(URL, content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_floats_are_taken_for_integers(rig):
    rig.say("a</think>b")
    response = ask(rig, n=1.0, max_tokens=5.0, seed=7.0, top_k=3.0)
    assert response.status_code == 200
    sampling = next(engine.requests[0] for engine in rig.engines if engine.requests).sampling
    assert (sampling.max_tokens, sampling.seed, sampling.top_k) == (5, 7, 3)


def test_max_tokens_is_a_ceiling_within_the_window(rig, engine_info):
    rig.say("a</think>b")
    assert ask(rig, max_tokens=10**9).status_code == 200
    [request] = next(engine.requests for engine in rig.engines if engine.requests)
    assert request.sampling.max_tokens == engine_info.max_model_len - len(request.token_ids)


def test_prompt_beyond_the_window_is_refused_before_any_stream(rig, engine_info):
    long = [{"role": "user", "content": "word " * engine_info.max_model_len}]
    response = ask(rig, messages=long, stream=True)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "maximum context length" in error["message"]
    assert str(engine_info.max_model_len) in error["message"]


def test_overload_is_429_with_retry_after(rig):
    for engine in rig.engines:
        engine.refusal = EngineOverloaded("256 requests are waiting", retry_after_s=3.2)
    response = ask(rig)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "4"
    assert response.json()["error"]["type"] == "rate_limit_error"


def test_engine_failure_before_the_first_byte_is_a_status(rig):
    rig.say("a</think>b", fail_after=0)
    for is_stream in (False, True):
        response = ask(rig, stream=is_stream)
        assert response.status_code == 500
        assert response.json()["error"]["code"] == "engine_failed"


def test_engine_failure_in_mid_stream_is_an_error_event_without_done(rig):
    rig.say("abc</think>abc", fail_after=2)
    status, _, events = stream(rig)
    assert status == 200
    assert json.loads(events[-1])["error"]["message"] == "boom"
    assert "[DONE]" not in events
    assert not any(choice["finish_reason"] for choice in choices_of(events[:-1]))


def test_lost_engine_is_replaced_before_the_first_token(rig):
    steps = [*rig.words.tokens("a</think>b"), [rig.words.eos]]
    rig.engines[0].script = Script(steps=steps, lose_engine_after=0)
    rig.engines[1].script = Script(steps=steps)
    first = ask(rig, session_id="moves")
    assert first.status_code == 200
    assert first.headers["x-trnrt-engine"] == "1"
    rig.router.call(rig.clients[0].revive)
    assert ask(rig, session_id="moves").headers["x-trnrt-engine"] == "1"


def test_nothing_is_retried_after_the_first_token(rig):
    rig.say("abcdef</think>abc", lose_engine_after=2)
    _, _, events = stream(rig)
    assert json.loads(events[-1])["error"]["code"] == "engine_lost"
    assert "[DONE]" not in events
    assert sum(client.num_submits for client in rig.clients) == 1


def test_no_engine_is_503(rig):
    for client in rig.clients:
        rig.router.call(client.kill)
    response = ask(rig)
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1


def test_draining_is_503(rig):
    rig.router.service.is_draining = True
    assert ask(rig).status_code == 503


def test_silence_before_the_first_token_is_filled_with_comments(rig):
    rig.say("a</think>b", prefill_s=0.6)
    status, _, events = stream(rig)
    assert status == 200
    first_data = next(i for i, event in enumerate(events) if event[0] != ":")
    assert first_data >= 4
    assert joined(events, "content") == "b"


def test_client_that_waits_is_told_its_place_and_how_far_its_prompt_is(rig):
    told = iter(
        [
            RequestProgress(position=3, num_prompt_tokens=99),
            RequestProgress(num_computed_tokens=64, num_prompt_tokens=99, prefill_s=1.0),
        ]
    )
    for engine in rig.engines:
        engine.progress_of = lambda request_id: next(told, None)
    rig.say("a</think>b", prefill_s=0.6)
    _, _, events = stream(rig)
    comments = [event for event in events if event[0] == ":"]
    assert comments[0].strip() == ": queued position=3"
    assert comments[1].strip() == ": prefill computed=64 total=99 prefill_s=1"
    assert comments[2].strip() == ": waiting"


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
def test_client_that_leaves_frees_the_engine(rig, is_stream):
    rig.play(Script(steps=rig.words.tokens("and on "), repeat=True))
    body = {"model": "glm", "messages": HI, "stream": is_stream, "ignore_eos": True, "n": 2}
    if is_stream:
        with rig.http.stream("POST", URL, json=body) as response:
            next(response.iter_bytes())
    else:
        with pytest.raises(httpx.ReadTimeout):
            rig.http.post(URL, json=body, timeout=0.3)
    rig.router.wait_until(lambda: rig.num_running() == 0)
    assert len(rig.aborted()) == 2


def test_finished_requests_send_no_abort(rig):
    rig.say("a</think>b")
    for is_stream in (False, True):
        assert ask(rig, stream=is_stream).status_code == 200
    assert rig.aborted() == []


def test_session_stays_on_its_engine_whatever_names_it(rig):
    rig.say("a</think>b")
    for fields, headers in [
        ({"session_id": "k1"}, {}),
        ({"prompt_cache_key": "k2"}, {}),
        ({}, {"X-Session-ID": "k3"}),
        ({}, {"X-Correlation-ID": "k4"}),
    ]:
        body = {"model": "glm", "messages": HI, **fields}
        homes = {
            rig.http.post(URL, json=body, headers=headers).headers["x-trnrt-engine"]
            for _ in range(3)
        }
        assert len(homes) == 1


def test_tools_are_left_out_of_the_prompt_when_none_may_be_called(rig):
    rig.say("a</think>b")
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    lengths = [
        ask(rig, tools=tools, **extra).json()["usage"]["prompt_tokens"]
        for extra in ({}, {"tool_choice": "auto"}, {"tool_choice": "none"})
    ]
    assert lengths[0] == lengths[1] > lengths[2]


WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        },
    },
}
CALLS = (
    "hm</think>Both:<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value>"
    "<arg_key>days</arg_key><arg_value>2</arg_value></tool_call>\n"
    "<tool_call>get_weather</tool_call>"
)


def test_calls_of_a_whole_answer(rig):
    rig.say(CALLS)
    [choice] = ask(rig, tools=[WEATHER]).json()["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert (message["reasoning_content"], message["content"]) == ("hm", "Both:")
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "get_weather", "arguments": '{"city": "Oslo", "days": 2}'},
        {"name": "get_weather", "arguments": "{}"},
    ]
    ids = {call["id"] for call in message["tool_calls"]}
    assert len(ids) == 2
    assert all(call["type"] == "function" and call["id"] for call in message["tool_calls"])


def test_calls_of_a_stream(rig):
    rig.say(CALLS)
    events = stream(rig, tools=[WEATHER], n=2)[2]
    ids = set()
    for index in range(2):
        entries = [c for delta in deltas_of(events, index) for c in delta.get("tool_calls", ())]
        for number, arguments in enumerate(('{"city": "Oslo", "days": 2}', "{}")):
            first, *later = [entry for entry in entries if entry["index"] == number]
            ids.add(first["id"])
            assert (first["type"], first["function"]["name"]) == ("function", "get_weather")
            assert all(entry.keys() == {"index", "function"} for entry in later)
            assert all(entry["function"].keys() == {"arguments"} for entry in later)
            pieces = [entry["function"]["arguments"] for entry in (first, *later)]
            assert "".join(pieces) == arguments
        assert joined(events, "content", index) == "Both:"
    assert len(ids) == 4
    reasons = [c["finish_reason"] for c in choices_of(events) if c["finish_reason"]]
    assert reasons == ["tool_calls"] * 2


def test_every_token_of_a_call_has_its_logprob(rig):
    rig.say(CALLS)
    asked = {"tools": [WEATHER], "logprobs": True}
    [choice] = ask(rig, **asked).json()["choices"]
    num_tokens = len(rig.words.tokens(CALLS)) + 1
    assert len(choice["logprobs"]["content"]) == num_tokens
    streamed = [
        entry
        for choice in choices_of(stream(rig, **asked)[2])
        for entry in (choice.get("logprobs") or {}).get("content", ())
    ]
    assert streamed == choice["logprobs"]["content"]


@pytest.mark.parametrize("extra", [{}, {"tools": []}, {"tools": [WEATHER], "tool_choice": "none"}])
def test_calls_are_text_where_nothing_may_be_called(rig, extra):
    rig.say("</think><tool_call>get_weather</tool_call>")
    [choice] = ask(rig, **extra).json()["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "<tool_call>get_weather</tool_call>",
    }
    assert choice["finish_reason"] == "stop"


def test_a_call_cut_by_the_limit_is_no_tool_call(rig):
    rig.say(CALLS)
    limit = len(rig.words.tokens(CALLS)) - 8
    [choice] = ask(rig, tools=[WEATHER], max_tokens=limit).json()["choices"]
    assert choice["finish_reason"] == "length"
    [call] = choice["message"]["tool_calls"]
    assert '{"city": "Oslo", "days": 2}'.startswith(call["function"]["arguments"])
    assert not call["function"]["arguments"].endswith("}")
