"""Flush and release reach every engine, or the client hears which one they did not."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from trnrt_router.affinity import RouteKey


def flush(rig, **request):
    return rig.http.post("/v1/cache/flush", **request)


@pytest.mark.parametrize(
    ("request_", "salt"),
    [
        ({}, None),
        ({"json": {}}, None),
        ({"json": {"cache_salt": None}}, None),
        ({"json": {"cache_salt": ""}}, ""),
        ({"json": {"cache_salt": "tenant"}}, "tenant"),
    ],
    ids=["no-body", "empty", "null", "unsalted", "one-salt"],
)
def test_flush_reaches_every_engine(rig, request_, salt):
    reply = flush(rig, **request_)
    assert (reply.status_code, reply.json()) == (200, {"engines": ["0", "1"]})
    assert [engine.flushed for engine in rig.engines] == [[salt], [salt]]


def test_only_a_whole_flush_forgets_where_prefixes_lie(rig):
    affinity = rig.router.service.pool.affinity
    key = RouteKey(session="flushed", prefixes=(b"prefix",))
    rig.router.call(affinity.bind, key, "1")
    flush(rig, json={"cache_salt": "tenant"})
    assert affinity._prefixes[b"prefix"] == {"1"}
    flush(rig)
    assert b"prefix" not in affinity._prefixes
    assert affinity.bound_engine("flushed") == "1"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ('{"salt": "tenant"}', "salt"),
        ('{"cache_salt": 5}', "cache_salt"),
        ("[]", None),
        ("{", None),
    ],
)
def test_flush_that_is_misspelled_flushes_nothing(rig, body, param):
    reply = flush(rig, content=body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
    assert [engine.flushed for engine in rig.engines] == [[], []]


SESSIONS = ["s-1", "team/a/b", "a//b", "a/", "/a", "/sessions/", "with space", "\u00e9", "50%"]


@pytest.mark.parametrize("safe", ["/", ""], ids=["slashes", "escaped"])
@pytest.mark.parametrize("session", SESSIONS)
def test_session_is_released_on_every_engine(rig, session, safe):
    reply = rig.http.delete(f"/v1/cache/sessions/{quote(session, safe=safe)}")
    assert (reply.status_code, reply.json()) == (200, {"engines": ["0", "1"]})
    assert [engine.released for engine in rig.engines] == [[session], [session]]


def test_session_that_cannot_be_one_is_refused(rig):
    reply = rig.http.delete(f"/v1/cache/sessions/{'s' * 513}")
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "session_id")


def test_engine_that_is_not_there_is_named_and_the_others_are_told(rig):
    rig.router.call(rig.clients[1].kill)
    for reply in (flush(rig), rig.http.delete("/v1/cache/sessions/s")):
        assert reply.status_code == 503
        assert reply.headers["retry-after"] == "2"
        assert "1 of 2 engines" in reply.json()["error"]["message"]
        assert "engine 1 is lost" in reply.json()["error"]["message"]
    assert (rig.engines[0].flushed, rig.engines[0].released) == ([None], ["s"])
