from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

HI = {"model": "glm", "messages": [{"role": "user", "content": "hi"}]}


def samples(rig):
    text = rig.http.get("/metrics").text
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_get_and_head_answer_alike(rig):
    got, head = rig.http.get("/metrics"), rig.http.head("/metrics")
    assert got.status_code == head.status_code == 200
    assert got.headers["content-type"] == head.headers["content-type"]
    assert head.content == b""


def test_requests_and_tokens_are_counted(rig):
    rig.say("a</think>b", num_cached_tokens=3)
    before = samples(rig)
    usage = rig.http.post("/v1/chat/completions", json=HI).json()["usage"]
    rig.http.post("/v1/chat/completions", json={})
    after = samples(rig)

    def grown(name, **labels):
        key = (name, *sorted(labels.items()))
        return after[key] - before.get(key, 0)

    assert grown("trnrt_requests_total", endpoint="chat", status="200") == 1
    assert grown("trnrt_requests_total", endpoint="chat", status="400") == 1
    assert grown("trnrt_prompt_tokens_total") == usage["prompt_tokens"]
    assert grown("trnrt_cached_prompt_tokens_total") == 3
    assert grown("trnrt_generation_tokens_total") == usage["completion_tokens"]
    assert grown("trnrt_time_to_first_token_seconds_count") == 1
    assert after[("trnrt_running_requests",)] == 0


def test_engines_are_shown_by_name(rig):
    rig.router.call(rig.clients[1].kill)
    found = samples(rig)
    assert found[("trnrt_engine_up", ("engine", "0"))] == 1
    assert found[("trnrt_engine_up", ("engine", "1"))] == 0
    assert found[("trnrt_engine_running_requests", ("engine", "0"))] == 0


def test_a_body_that_breaks_off_or_is_too_large_is_no_server_error(rig):
    before = samples(rig)
    url = urlsplit(str(rig.http.base_url))
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n"
    with socket.create_connection((url.hostname, url.port)) as connection:
        connection.sendall(head.format(1000).encode() + b'{"mod')
    with socket.create_connection((url.hostname, url.port)) as connection:
        connection.sendall(head.format(10**12).encode())
        assert b" 413 " in connection.recv(100)

    def counted(status):
        key = ("trnrt_requests_total", ("endpoint", "chat"), ("status", status))
        return samples(rig).get(key, 0) - before.get(key, 0)

    limit_s = time.monotonic() + 30
    while counted("499") < 1 and time.monotonic() < limit_s:
        time.sleep(0.01)
    assert counted("499") == 1
    assert counted("413") == 1
    assert counted("500") == 0
