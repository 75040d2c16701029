from __future__ import annotations

import socket
import time
from urllib.parse import urlsplit

from prometheus_client.parser import text_string_to_metric_families

from support.scripted_engine import ScriptedEngineClient
from trnrt_engine.api import CacheReport
from trnrt_router import metrics
from trnrt_router.protocol import EngineStats

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


def test_cache_lookups_are_counted_by_reason_and_tier(rig):
    report = CacheReport(kv_depth=512, state_depth=448, replayed=64, tier="host", reason="hit")
    rig.say("a</think>b", cache_report=report)
    before = samples(rig)
    rig.http.post("/v1/chat/completions", json=HI | {"n": 2})
    rig.say("a</think>b", cache_report=CacheReport(reason="cold"))
    rig.http.post("/v1/chat/completions", json=HI)
    after = samples(rig)
    for labels, count in (
        ((("reason", "hit"), ("tier", "host")), 2),
        ((("reason", "cold"), ("tier", "none")), 1),
    ):
        key = ("trnrt_cache_lookups_total", *labels)
        assert after[key] - before.get(key, 0) == count
    replayed = ("trnrt_replayed_prompt_tokens_total",)
    assert after[replayed] - before[replayed] == 128


def test_engines_are_shown_by_name(rig):
    rig.router.call(rig.clients[1].kill)
    found = samples(rig)
    assert found[("trnrt_engine_up", ("engine", "0"))] == 1
    assert found[("trnrt_engine_up", ("engine", "1"))] == 0
    assert found[("trnrt_engine_running_requests", ("engine", "0"))] == 0


def test_prefix_cache_of_each_engine_is_shown(rig, monkeypatch):
    stats = EngineStats(
        cached_pages=5,
        num_bundles=3,
        cache_lookups={"hit": 2, "cold": 1},
        cache_bytes_loaded={"host": 7},
    )
    monkeypatch.setattr(ScriptedEngineClient, "stats", stats)
    found = samples(rig)
    for engine in ("0", "1"):
        label = ("engine", engine)
        assert found[("trnrt_engine_cached_pages", label)] == 5
        assert found[("trnrt_engine_cached_bundles", label)] == 3
        for reason, count in stats.cache_lookups.items():
            key = ("trnrt_engine_cache_lookups_total", label, ("reason", reason))
            assert found[key] == count
        assert found[("trnrt_engine_cache_loaded_bytes_total", label, ("tier", "host"))] == 7


def test_everything_an_engine_counts_is_shown():
    counters = [metrics._ENGINE_COUNTERS, metrics._LABELLED_COUNTERS]
    shown = [metrics._ENGINE_GAUGES, *counters, metrics._ENGINE_HISTOGRAMS]
    assert {*EngineStats.__struct_fields__} == set().union(*shown)


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
