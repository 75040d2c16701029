"""The case records from the field, run by the same functions as `run_cases.py`."""

from pathlib import Path

import pytest

import run_cases
from case_drivers.dispatch import read_records, run_record
from case_drivers.outcome import Outcome, Status

CASES = Path(__file__).parent / "cases"
FILES = {
    "api": 9,
    "chat_template": 23,
    "compile_cache": 15,
    "detok_stop": 14,
    "fp8_weights": 9,
    "logprobs": 5,
    "long_context": 8,
    "neuron_ops": 9,
    "prefix_cache": 29,
    "reasoning_parser": 5,
    "router": 7,
    "scheduler": 9,
    "streaming_sse": 11,
    "structured_output": 1,
    "tool_parser": 19,
}
RECORDS = [entry for path in sorted(CASES.glob("*.jsonl")) for entry in read_records(path)]


def test_every_file_is_here_with_all_its_records():
    found = {path.stem: len(list(read_records(path))) for path in CASES.glob("*.jsonl")}
    assert found == FILES


@pytest.mark.parametrize("record", [r for _, r in RECORDS], ids=[name for name, _ in RECORDS])
def test_record(record):
    outcome = record if isinstance(record, Outcome) else run_record(record)
    assert outcome.status in (Status.PASS, Status.NOT_YET), outcome.reason
    if outcome.status is Status.NOT_YET:
        pytest.skip(outcome.reason)


def test_unknown_kinds_and_malformed_records_fail():
    common = {"id": "X", "case": "X", "area": "detok_stop"}
    assert run_record({**common, "kind": "telepathy"}).status is Status.FAIL
    assert run_record({**common, "kind": "text_stream"}).status is Status.FAIL
    assert run_record({"kind": "text_stream"}).status is Status.FAIL


def test_the_runner_prints_a_line_per_record_and_exits_by_failure(tmp_path, capsys):
    waiting = CASES / "compile_cache.jsonl"
    assert run_cases.main([str(waiting)]) == 0
    assert all(" not-yet " in line for line in capsys.readouterr().out.splitlines())

    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"id": "B-1"}\nno json\n')
    assert run_cases.main([str(broken)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["broken.jsonl:1", "fail"],
        ["broken.jsonl:2", "fail"],
    ]


def test_a_missing_or_empty_file_is_a_failure(tmp_path, capsys):
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert run_cases.main([str(empty)]) == 1
    assert run_cases.main([str(tmp_path / "absent.jsonl")]) == 1
    assert run_cases.main([]) == 2
