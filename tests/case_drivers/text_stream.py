"""Kind `text_stream`: decoded texts through the output parser and the stop matcher."""

from __future__ import annotations

from typing import Any

from case_drivers import byte_stream
from case_drivers.outcome import PASSED, Outcome, failed
from case_drivers.texts import (
    allowed_answers,
    differences,
    every_cut,
    read_text,
    stream_options,
)


def run(record: dict[str, Any]) -> Outcome:
    if "pieces_hex" in record:
        return byte_stream.run(record)
    pieces, options, allowed = record["pieces"], stream_options(record), allowed_answers(record)
    raw = "".join(pieces)
    cuts = [
        ("as given", pieces),
        ("non-streaming", [raw]),
        *every_cut(raw, ["every_char", "every_two_way_split"]),
    ]
    for label, cut in cuts:
        # Without a match the record says how the generation ended.
        answer = read_text(cut, ended=record["expect"].get("finish_reason", "stop"), **options)
        faults = [differences(answer, expect, {}) for expect in allowed]
        if all(faults):
            return failed(f"{label}: {faults[0]}")
        shown = [text for text in options["stop"] if text in answer.content]
        if shown and not options["include_stop_str"]:
            return failed(f"{label}: stop string {shown[0]!r} is visible")
    return PASSED
