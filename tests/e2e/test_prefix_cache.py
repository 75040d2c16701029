"""A conversation that comes back, over the wire and through real engines' caches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from support.demo_folder import DEMO_DIR
from support.served import Served, served

GRID = 64
SYSTEM = "You answer in one short sentence. " * 12
QUESTIONS = ("Who are you?", "What can you do?", "Where do you run?")


@dataclass(frozen=True)
class Answer:
    """What a client hears: the choices, the cached tokens, the header taken apart."""

    choices: list[dict[str, Any]]
    cached_tokens: int
    engine: str
    found: dict[str, str]

    @property
    def content(self) -> str:
        return self.choices[0]["message"]["content"]


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """Two engines of the shipped model, with pages that a handful of prompts fills."""
    # Exact: answers are compared bit by bit, and one session's prompts push each other out only
    # where the end of its last turn is not kept for it.
    flags = ("--engines", "2", "--numeric-mode", "strict", "--exact-cache", "on")
    room = ("--max-num-seqs", "2", "--max-model-len", "1024")
    with served(DEMO_DIR, *flags, *room) as running:
        yield running


@pytest.fixture
def http(server) -> Iterator[httpx.Client]:
    """A client of a server whose cache is empty."""
    with httpx.Client(base_url=server.url, timeout=90) as client:
        client.post("/v1/cache/flush").raise_for_status()
        yield client


def post(http: httpx.Client, url: str, body: dict[str, Any]) -> Answer:
    reply = http.post(url, json=body | {"model": "glm", "temperature": 0})
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    return Answer(
        choices=answer["choices"],
        cached_tokens=answer["usage"]["prompt_tokens_details"]["cached_tokens"],
        engine=reply.headers["x-trnrt-engine"],
        found=dict(pair.split("=") for pair in reply.headers["x-trnrt-cache"].split(", ")),
    )


def ask(http: httpx.Client, *said: str, session: str = "s", **fields: Any) -> Answer:
    """Ask with what was said after the system message: question, answer, question..."""
    messages = [{"role": "system", "content": SYSTEM}]
    for index, text in enumerate(said):
        messages.append({"role": ("user", "assistant")[index % 2], "content": text})
    body = {"messages": messages, "max_tokens": 12, "session_id": session, "logprobs": True}
    return post(http, "/v1/chat/completions", body | {"top_logprobs": 3} | fields)


def push_out(http: httpx.Client, session: str, *, salt: str, num_pages: int) -> None:
    """Leave more prompts on a session's engine than it has pages for."""
    prompts = [[5 + number] * (GRID + 1) for number in range(num_pages + 1)]
    body = {"prompt": prompts, "max_tokens": 1, "session_id": session, "cache_salt": salt}
    post(http, "/v1/completions", body)


def test_second_turn_is_a_hit_and_its_answer_is_that_without_a_cache(server, http):
    names = ("trnrt_cached_prompt_tokens_total", "trnrt_engine_cache_hit_tokens_total")
    before = {name: server.metric(name) for name in names}
    hits = server.metric("trnrt_cache_lookups_total", reason="hit", tier="device")
    first = ask(http, QUESTIONS[0])
    assert (first.cached_tokens, first.found["reason"]) == (0, "cold")
    said = [QUESTIONS[0], first.content, QUESTIONS[1]]
    second = ask(http, *said)
    assert second.engine == first.engine
    assert second.cached_tokens > 0
    assert second.cached_tokens % GRID == 0
    assert second.found["reason"] == "hit"
    assert second.found["tier"] == "device"
    assert second.found["state_depth"] == str(second.cached_tokens)
    third = [*said, second.content, QUESTIONS[2]]
    for turn, cached in ((said, second), (third, ask(http, *third))):
        alone = ask(http, *turn, cache="off")
        assert (alone.cached_tokens, alone.found["reason"]) == (0, "caching_off")
        assert cached.choices == alone.choices
    assert cached.cached_tokens >= second.cached_tokens
    num_cached = second.cached_tokens + cached.cached_tokens
    for name in names:  # the engine's come with its next beat
        server.wait_until(lambda name=name: server.metric(name) == before[name] + num_cached)
    assert server.metric("trnrt_cache_lookups_total", reason="hit", tier="device") == hits + 2
    assert server.metric("trnrt_engine_cached_bundles") > 0
    assert any("request finished" in line and "cache=hit" in line for line in server.log)


def test_stream_says_in_its_usage_what_was_cached(http):
    ask(http, QUESTIONS[0])
    cached = ask(http, QUESTIONS[0]).cached_tokens
    assert cached > 0
    body = {
        "model": "glm",
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": QUESTIONS[0]},
        ],
        "max_tokens": 4,
        "session_id": "s",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    text = http.post("/v1/chat/completions", json=body).text
    assert f'"cached_tokens":{cached}' in text.replace(" ", "")


def test_flush_makes_a_prompt_cold(http):
    ask(http, QUESTIONS[0])
    assert ask(http, QUESTIONS[0]).cached_tokens > 0
    assert http.post("/v1/cache/flush", json={"cache_salt": "other"}).json() == {
        "engines": ["0", "1"]
    }
    assert ask(http, QUESTIONS[0]).cached_tokens > 0
    assert http.post("/v1/cache/flush").json() == {"engines": ["0", "1"]}
    again = ask(http, QUESTIONS[0])
    assert (again.cached_tokens, again.found["kv_depth"], again.found["reason"]) == (0, "0", "cold")


def test_salts_share_nothing(http):
    ask(http, QUESTIONS[0], cache_salt="a")
    for salt in ("b", ""):
        other = ask(http, QUESTIONS[0], cache_salt=salt)
        assert (other.cached_tokens, other.found["reason"]) == (0, "cold")
    assert ask(http, QUESTIONS[0], cache_salt="a").cached_tokens > 0
    http.post("/v1/cache/flush", json={"cache_salt": "a"}).raise_for_status()
    assert ask(http, QUESTIONS[0], cache_salt="a").cached_tokens == 0
    assert ask(http, QUESTIONS[0], cache_salt="b").cached_tokens > 0


def test_read_uses_what_is_there_and_leaves_nothing(http):
    assert ask(http, QUESTIONS[0], cache="read").found["reason"] == "cold"
    assert ask(http, QUESTIONS[0]).found["reason"] == "cold"
    assert ask(http, QUESTIONS[0], cache="read").found["reason"] == "hit"


@pytest.mark.parametrize("end", ["release", "flush"])
def test_pinned_prompt_outlives_others_until_its_pin_ends(server, http, end):
    num_pages = int(server.metric("trnrt_engine_total_pages", engine="0"))
    pin = {"mode": "write", "pin": True}
    pinned = ask(http, QUESTIONS[0], session="pinned", cache=pin)
    push_out(http, "pinned", salt="before", num_pages=num_pages)
    kept = ask(http, QUESTIONS[0], session="pinned", cache="read")
    assert (kept.engine, kept.found["reason"]) == (pinned.engine, "hit")
    if end == "flush":
        http.post("/v1/cache/flush").raise_for_status()
        ask(http, QUESTIONS[0], session="pinned")
    else:
        http.delete("/v1/cache/sessions/pinned").raise_for_status()
    push_out(http, "pinned", salt="after", num_pages=num_pages)
    assert ask(http, QUESTIONS[0], session="pinned", cache="read").cached_tokens == 0
