from __future__ import annotations

import threading
import time

import msgspec
import pytest

from support.live_router import live_router
from support.scripted_engine import Script, ScriptedEngine, ScriptedEngineClient


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1", 404),
        ("POST", "/v1/models", 405),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/health", 405),
        ("PATCH", "/%2e%2e/%00", 404),
    ],
)
def test_what_the_framework_refuses_is_told_as_openai_does(rig, method, path, status):
    response = rig.http.request(method, path)
    assert response.status_code == status
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"


def test_bug_of_ours_is_a_500_without_details(rig, monkeypatch, caplog):
    def broken(*_args):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(rig.router.service.planner, "plan_chat", broken)
    response = rig.http.post("/v1/chat/completions", json={})
    assert response.status_code == 500
    assert response.json()["error"]["type"] == "server_error"
    assert "secret" not in response.text
    assert "secret detail" in caplog.text


def test_body_above_the_limit_is_413(words, engine_info):
    client = ScriptedEngineClient(ScriptedEngine(info=engine_info))
    with live_router([client], max_body_bytes=10_000) as router:
        response = router.http.post("/v1/chat/completions", content=b"x" * 20_000)
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"
    assert "larger than 10000 bytes" in response.json()["error"]["message"]


def test_prompt_that_cannot_fit_is_refused_without_being_tokenized(rig):
    body = {"model": "glm", "messages": [{"role": "user", "content": "lorem ipsum " * 10**6}]}
    response = rig.http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert "at least" in response.json()["error"]["message"]


def test_long_prompt_does_not_block_others(words, engine_info):
    """Health and streams go on while a prompt of a million tokens is worked on."""
    engine = ScriptedEngine(
        info=msgspec.structs.replace(engine_info, max_model_len=2_000_000),
        script=Script(steps=words.tokens("on and "), repeat=True),
        step_s=0.01,
    )
    url = "/v1/chat/completions"
    going = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "ignore_eos": True}
    long = {"messages": [{"role": "user", "content": "lorem ipsum " * 130_000}], "max_tokens": 1}
    replies = []
    with live_router([ScriptedEngineClient(engine)]) as router:
        posting = threading.Thread(
            target=lambda: replies.append(router.http.post(url, json=long, timeout=100))
        )
        with router.http.stream("POST", url, json=going) as stream:
            lines = stream.iter_lines()
            next(lines)
            posting.start()
            gaps, slowest = [], 0.0
            while posting.is_alive():
                began = time.monotonic()
                assert router.http.get("/health").status_code == 200
                slowest = max(slowest, time.monotonic() - began)
                began = time.monotonic()
                next(line for line in lines if line)
                gaps.append(time.monotonic() - began)
        posting.join()
    assert replies[0].json()["usage"]["prompt_tokens"] > 1_000_000
    assert len(gaps) > 3
    assert slowest < 0.5
    assert max(gaps) < 1.0
