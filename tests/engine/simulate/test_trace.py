"""Trace files: what is read, what is refused, what waits for what."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trnrt_engine.simulate.arrivals import Arrivals
from trnrt_engine.simulate.endless import EndlessCache
from trnrt_engine.simulate.generate import SessionMix, generate
from trnrt_engine.simulate.trace import TraceError, TraceRequest, read_trace, trees_of, write_trace


def test_a_written_trace_is_read_again(tmp_path: Path) -> None:
    requests = generate(SessionMix(num_sessions=3))
    write_trace(tmp_path / "t.jsonl", requests)
    assert read_trace(tmp_path / "t.jsonl") == requests


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id":"a","session":"s","num_tokens":65,"block_ids":[1]}', "num_tokens is 65"),
        ('{"id":"a","session":"s"}', "either token_ids or block_ids"),
        ('{"id":"a","session":"s","token_ids":[1],"block_ids":[1]}', "either token_ids"),
        ('{"id":"a","session":"s","token_ids":[1],"after":["b"]}', "waits for b"),
        ('{"id":"a","session":"s","token_ids":[1],"marks":[2]}', "marks must ascend"),
        ('{"id":"a","session":"s","token_ids":[1],"num_output_tokens":0}', "at least 1"),
        ('{"id":"a","session":"s","token_ids":[1],"pause_s":-1}', "not be negative"),
        ('{"id":"a","session":"s","token_ids":[1],"surprise":1}', "surprise"),
        ('{"id":"first","session":"s","token_ids":[1]}', "another request's"),
        ("", "line 3"),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "t.jsonl"
    first = '{"id":"first","session":"s","token_ids":[1,2]}'
    path.write_text(f'{{"format_version":1}}\n{first}\n{line}\n')
    with pytest.raises(TraceError, match=message):
        read_trace(path)


@pytest.mark.parametrize("header", ['{"format_version":2}', '{"id":"a","session":"s"}', "", "x"])
def test_a_file_without_our_header_is_refused(tmp_path: Path, header: str) -> None:
    (tmp_path / "t.jsonl").write_text(f"{header}\n")
    with pytest.raises(TraceError, match=r"t\.jsonl"):
        read_trace(tmp_path / "t.jsonl")


def test_blocks_are_equal_where_their_ids_are() -> None:
    def prompt(*block_ids: int, num_tokens: int) -> list[int]:
        request = TraceRequest(
            id="a", session="s", num_tokens=num_tokens, block_ids=list(block_ids)
        )
        return request.prompt(97).tolist()

    assert prompt(1, 2, num_tokens=100)[:64] == prompt(1, 3, num_tokens=128)[:64]
    assert prompt(1, 2, num_tokens=100)[64:] != prompt(1, 3, num_tokens=128)[64:100]
    assert len(prompt(1, 2, num_tokens=100)) == 100
    assert max(prompt(*range(40), num_tokens=2560)) < 97


def weka_file(folder: Path) -> Path:
    """A root with a sub-agent it joins, timed from its own start, and one that runs on."""

    def request(t: float, blocks: list[int], **more) -> dict:
        size = 64 * len(blocks) - 10
        return {"t": t, "type": "s", "model": "m", "in": size, "out": 5, "hash_ids": blocks, **more}

    def sub_agent(t: float, name: str, duration_ms: int | None, *requests: dict) -> dict:
        known = {"subagent_type": "Explore", "total_tokens": 1, "tool_use_count": 0}
        return {
            **{"t": t, "type": "subagent", "agent_id": name, "duration_ms": duration_ms},
            **{"status": "completed", "requests": list(requests), "models": ["m"], **known},
            **{"tool_tokens": 10, "system_tokens": 20},
        }

    session = {
        **{"id": "x", "models": ["m"], "block_size": 64, "hash_id_scope": "local"},
        **{"tool_tokens": 40, "system_tokens": 24},
        "requests": [
            request(0.0, [1, 2], api_time=2.0),
            sub_agent(3.0, "a", 5000, request(0.0, [9], api_time=1.0), request(2.5, [9, 8])),
            sub_agent(3.0, "b", 90_000, request(3.5, [7], api_time=80.0)),
            request(10.0, [1, 2, 3], api_time=1.0),
            request(12.0, [1, 2, 3, 4]),
        ],
    }
    (folder / "x.json").write_text(json.dumps(session))
    return folder


def test_recorded_sessions_wait_as_they_did(tmp_path: Path) -> None:
    requests = {request.id: request for request in read_trace(weka_file(tmp_path))}
    assert requests["x#1"].after == ["x#0", "x/a#1"]
    assert requests["x#1"].pause_s == pytest.approx(2.0)  # a ended at 8
    assert requests["x#2"].after == ["x#1"]
    assert requests["x#2"].pause_s == pytest.approx(1.0)
    assert (requests["x/a#0"].after, requests["x/a#0"].time_s) == (["x#0"], 3.0)
    assert requests["x/a#1"].after == ["x/a#0"]
    assert requests["x/a#1"].pause_s == pytest.approx(1.5)
    assert requests["x/b#0"].parent == "x"
    assert requests["x#0"].marks == [64, 118]
    assert requests["x#0"].block_ids == requests["x#2"].block_ids[:2]
    assert [len(tree) for tree in trees_of(list(requests.values()))] == [6]


def test_files_of_recorded_sessions_share_no_blocks(tmp_path: Path) -> None:
    weka_file(tmp_path)
    other = json.loads((tmp_path / "x.json").read_text())
    (tmp_path / "y.json").write_text(json.dumps({**other, "id": "y"}))
    requests = read_trace(tmp_path)
    assert len(requests) == 12
    assert not set(requests[0].block_ids) & {b for r in requests[6:] for b in r.block_ids}


def test_lanes_bound_the_sessions_alive() -> None:
    requests = generate(SessionMix(num_sessions=6, sub_agent_share=0.2))
    arrivals, now_s, most = Arrivals(requests, num_lanes=2), 0.0, 0
    open_roots: dict[str, int] = {}
    left = {tree[0].session: len(tree) for tree in trees_of(requests)}
    num_sent = 0
    while arrivals.next_s is not None:
        now_s = max(now_s, arrivals.next_s)
        for _, request in list(arrivals.take(now_s)):
            root = request.session.split(".")[0]
            open_roots[root] = open_roots.get(root, left[root]) - 1
            most = max(most, sum(count > 0 for count in open_roots.values()))
            num_sent += 1
            arrivals.end(request, now_s + 1.0)
    assert num_sent == len(requests)
    assert most == 2


def test_sessions_are_what_was_asked_for() -> None:
    mix = SessionMix(num_sessions=40, seed=5)
    requests = generate(mix)
    assert requests == generate(mix)
    assert requests != generate(SessionMix(num_sessions=40, seed=6))
    cache, known, total = EndlessCache(), 0, 0
    num_rewritten, last = 0, {}
    for request in requests:
        hit = cache.hit_tokens(request)
        before = last.get(request.session)
        num_rewritten += before is not None and hit < before.marks[-1] // 64 * 64
        cache.add(request)
        last[request.session] = request
        known, total = known + hit, total + request.num_tokens
    num_turns = len(requests) - len(last)
    assert 0.8 < known / total < 0.99
    assert 0.02 < num_rewritten / num_turns < 0.06
    assert any(request.parent for request in requests)
    assert max(request.num_tokens for request in requests) <= mix.max_context_tokens
