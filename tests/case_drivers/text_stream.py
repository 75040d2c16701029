"""Kind `text_stream`: decoded texts through the output parser and the stop matcher."""

from __future__ import annotations

from typing import Any

from case_drivers.outcome import PASSED, Outcome, failed
from case_drivers.texts import differences, every_cut, read_text


def run(record: dict[str, Any]) -> Outcome:
    pieces, stop = record["pieces"], record.get("stop", [])
    allowed = [record["expect"], *record.get("accept_instead", [])]
    if "*" in allowed:
        allowed = [{}]
    raw = "".join(pieces)
    cuts = [
        ("as given", pieces),
        ("non-streaming", [raw]),
        *every_cut(raw, ["every_char", "every_two_way_split"]),
    ]
    for label, cut in cuts:
        answer = read_text(
            cut,
            starts_in=record.get("start_in", "content"),
            stop=stop,
            # Without a match the record says how the generation ended.
            ended=record["expect"].get("finish_reason", "stop"),
        )
        faults = [differences(answer, _by_field(expect), {}) for expect in allowed]
        if all(faults):
            return failed(f"{label}: {faults[0]}")
        if shown := [text for text in stop if text in answer.content]:
            return failed(f"{label}: stop string {shown[0]!r} is visible")
    return PASSED


def _by_field(expect: dict[str, Any]) -> dict[str, Any]:
    return {("content" if name == "text" else name): value for name, value in expect.items()}
