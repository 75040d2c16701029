"""Replays without tensors: counted, reported, drawn, and the same whenever they run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from trnrt_engine.cli import main
from trnrt_engine.simulate.costs import CostModel
from trnrt_engine.simulate.generate import SessionMix, generate
from trnrt_engine.simulate.picture import draw
from trnrt_engine.simulate.replay import Replay
from trnrt_engine.simulate.report import report_of
from trnrt_engine.simulate.sizes import EngineSizes
from trnrt_engine.simulate.trace import TraceRequest

GIB = 2**30
MIX = SessionMix(num_sessions=3, output_tokens=20, num_turns=8.0, sub_agent_share=0.2)
SHORT = EngineSizes.released(3 * GIB, host_bytes=2 * GIB, disk_bytes=40 * GIB)


def replayed(sizes: EngineSizes = SHORT, **fields) -> Replay:
    replay = Replay(generate(MIX), sizes, **fields)
    replay.run()
    return replay


def test_a_replay_is_the_same_whenever_it_runs() -> None:
    first, second = report_of(replayed()), report_of(replayed())
    assert first == second
    assert {"device", "host"} <= set(first.tier_hit_tokens)
    assert sum(first.tier_hit_tokens.values()) == first.hit_tokens
    assert sum(first.lookups.values()) == first.num_requests
    assert first.bytes_written["disk"] > first.bytes_loaded["disk"]


def test_nothing_is_left_behind() -> None:
    replay = replayed()
    replay.cache.check_integrity([])
    replay.cache.flush()
    assert replay.cache.num_free_pages == replay.cache.num_pages
    assert replay.cache.num_free_state_slots == replay.cache.num_state_slots


def test_ample_memory_hits_what_a_cache_that_never_evicts_does() -> None:
    report = report_of(replayed(EngineSizes.released(400 * GIB)))
    assert report.hit_rate >= 0.99 * report.endless_hit_rate
    assert report.evicted_pages == report.evicted_bundles == 0


def test_times_are_those_of_the_cost_model() -> None:
    request = TraceRequest(
        id="a", session="s", num_tokens=640, block_ids=list(range(10)), num_output_tokens=3
    )
    costs = CostModel(
        prefill_ms=100.0,
        prefill_us_per_token=1000.0,
        context_us_per_token=0.0,
        decode_ms=50.0,
        decode_ms_per_seq=0.0,
    )
    replay = Replay([request], EngineSizes.released(4 * GIB), costs)
    replay.run()
    assert replay.outcomes["a"].first_token_s == pytest.approx(0.74)
    assert replay.outcomes["a"].ended_s == pytest.approx(0.84)


def test_a_request_that_never_fits_is_counted_and_holds_nobody_up() -> None:
    def request(name: str, tokens: int, *after: str) -> TraceRequest:
        blocks = list(range(tokens // 64))
        return TraceRequest(
            id=name, session="s", num_tokens=tokens, block_ids=blocks, after=list(after)
        )

    replay = Replay(
        [request("large", 64_000), request("next", 640, "large")],
        EngineSizes.released(4 * GIB, max_model_len=32_000),
    )
    replay.run()
    assert report_of(replay).num_refused == 1
    assert "32000" in replay.outcomes["large"].refused
    assert replay.outcomes["next"].ended_s > 0


def test_the_picture_shows_every_tier_within_its_frame() -> None:
    root = ElementTree.fromstring(draw(replayed()))
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    texts = {element.text for element in root.iter() if element.tag.endswith("text")}
    assert {"host", "disk", "device", "states", "cached pages"} <= texts
    dots = [element for element in root.iter() if element.tag.endswith("circle")]
    assert len(dots) == len(generate(MIX))
    assert all(0 <= float(dot.get("cx", -1)) <= width for dot in dots)
    assert all(0 <= float(dot.get("cy", -1)) <= height for dot in dots)


def test_commands_make_replay_and_draw_a_trace(tmp_path: Path) -> None:
    trace, plot, run = tmp_path / "t.jsonl", tmp_path / "p.svg", CliRunner()
    made = run.invoke(
        main,
        ["cache", "generate", str(trace), "--sessions", "2", "--set", "num_turns=4"],
    )
    assert made.exit_code == 0, made.output
    asked = ["cache", "simulate", str(trace), "--cache-gib", "8", "--cost", "decode_ms=1"]
    text = run.invoke(main, [*asked, "--plot", str(plot)])
    assert text.exit_code == 0, text.output
    assert "(modelled)" in text.output
    assert plot.read_text().startswith("<svg")
    as_json = run.invoke(main, [*asked, "--json"])
    report = json.loads(as_json.output)
    assert f"{report['hit_rate']:.2%}" in text.output
    listed = run.invoke(main, ["cache", "defaults"]).output
    assert re.search(r"^  decode_ms +10$", listed, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cost", "speed=1"], "none of"),
        (["--cost", "decode_ms=fast"], "decode_ms=fast"),
        (["--cost", "decode_ms=-1"], "must not be negative"),
        (["--plot", "p.png"], "must end in .svg"),
        (["--model", "no such model"], "no such model"),
    ],
)
def test_commands_say_what_is_wrong(tmp_path: Path, arguments: list[str], message: str) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"format_version":1}\n{"id":"a","session":"s","token_ids":[1,2]}\n')
    result = CliRunner().invoke(main, ["cache", "simulate", str(trace), *arguments])
    assert result.exit_code != 0
    assert message in result.output
