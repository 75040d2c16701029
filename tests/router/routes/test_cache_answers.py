"""Every answer says what the prefix cache did for it."""

from __future__ import annotations

import json
import logging

import pytest

from support.live_router import events_of
from trnrt_engine.api import CacheReport

REPORT = CacheReport(kv_depth=512, state_depth=448, replayed=64, tier="device", reason="hit")
HEADER = "kv_depth=512, state_depth=448, replayed=64, tier=device, reason=hit"
CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
COMPLETION = ("/v1/completions", {"prompt": "hi"})
endpoints = pytest.mark.parametrize(
    ("url", "body"), [CHAT, COMPLETION], ids=["chat", "completions"]
)


def stream(rig, url, body):
    """Return (headers, chunks) of a streamed answer."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with rig.http.stream("POST", url, json=body | options) as response:
        events = list(events_of(response))
        return response.headers, [json.loads(event) for event in events if event[0] == "{"]


def cached_tokens(usage):
    return usage["prompt_tokens_details"]["cached_tokens"]


@endpoints
@pytest.mark.parametrize("num_cached", [0, 448])
def test_usage_always_has_cached_tokens(rig, url, body, num_cached):
    rig.say("a</think>b", num_cached_tokens=num_cached)
    assert cached_tokens(rig.http.post(url, json=body).json()["usage"]) == num_cached
    assert cached_tokens(stream(rig, url, body)[1][-1]["usage"]) == num_cached


@endpoints
def test_header_and_log_line_say_what_was_found(rig, caplog, url, body):
    rig.say("a</think>b", num_cached_tokens=448, cache_report=REPORT)
    with caplog.at_level(logging.INFO, "trnrt_router"):
        assert rig.http.post(url, json=body).headers["x-trnrt-cache"] == HEADER
        assert stream(rig, url, body)[0]["x-trnrt-cache"] == HEADER
        rig.router.wait_until(lambda: rig.num_running() == 0)
    lines = [line for line in caplog.messages if line.startswith("request finished")]
    assert len(lines) == 2
    for line in lines:
        assert "cached=448" in line
        assert "kv_depth=512 state_depth=448 replayed=64 tier=device cache=hit" in line


def test_miss_is_said_with_its_reason(rig):
    rig.say("a</think>b", cache_report=CacheReport(kv_depth=64, replayed=64, reason="no_bundle"))
    url, body = CHAT
    assert rig.http.post(url, json=body).headers["x-trnrt-cache"] == (
        "kv_depth=64, state_depth=0, replayed=64, tier=none, reason=no_bundle"
    )


def test_stream_that_begins_before_its_first_token_says_it_in_usage_alone(rig):
    rig.say("a</think>b", num_cached_tokens=448, cache_report=REPORT)
    url, body = CHAT
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for engine in rig.engines:
        rig.router.call(engine.step_gate.clear)
    with rig.http.stream("POST", url, json=body | options) as response:
        assert "x-trnrt-cache" not in response.headers
        for engine in rig.engines:
            rig.router.call(engine.step_gate.set)
        *_, last, done = events_of(response)
    assert done == "[DONE]"
    assert cached_tokens(json.loads(last)["usage"]) == 448
