"""Kind `parse`: the output parser on text in every cut, and on token ids in every grouping."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from case_drivers.outcome import PASSED, Outcome, failed
from case_drivers.texts import Answer, differences, every_cut, join, read_text, tools_of
from support.demo_folder import DEMO_DIR
from trnrt_router.text.choice import ChoiceStream
from trnrt_router.text.controls import new_seam, remove_seams
from trnrt_router.text.markup import GLM, Section
from trnrt_router.text.tokenizer import Tokenizer

MAX_GROUP = 8


def run(record: dict[str, Any]) -> Outcome:
    allowed = [record["expect"], *record.get("accept_instead", [])]
    first: Answer | None = None
    for label, answer in _answers(record):
        if "*" not in allowed:
            faults = [differences(answer, expect, record.get("compare", {})) for expect in allowed]
            if all(faults):
                return failed(f"{label}: {faults[0]}")
        for text in record.get("must_not_appear", []):
            if any(text in shown for shown in _shown(answer)):
                return failed(f"{label}: {text!r} appears")
        first = first or answer
        if answer != first:
            return failed(f"{label}: {answer} differs from {first}")
    return PASSED


def _shown(answer: Answer) -> Iterator[str]:
    """Everything a tag or another text may have leaked into; values are compared elsewhere."""
    yield from (answer.reasoning, answer.content)
    for call in answer.calls:
        yield call.name
        yield call.arguments


def _answers(record: dict[str, Any]) -> Iterator[tuple[str, Answer]]:
    raw, ended = record["raw"], record["generation_ended"]
    options = {"starts_in": Section(record["start_in"]), "tools": tools_of(record)}
    yield "non-streaming", read_text([raw], ended=ended, **options)
    cuts = [*record["chunkings"].items(), *every_cut(raw, record.get("also_try", []))]
    for label, pieces in cuts:
        if "".join(pieces) != raw:
            raise ValueError(f"chunking {label!r} does not add up to the raw text")
        yield label, read_text(pieces, ended=ended, **options)
    for size in range(1, MAX_GROUP + 1):
        yield f"ids in groups of {size}", _read_ids(raw, size, ended=ended, **options)


def _read_ids(raw: str, group: int, *, ended: str, **options: Any) -> Answer:
    tokenizer = _demo_tokenizer()
    ids, stop_id = _encode_output(tokenizer, raw)
    stream = ChoiceStream(tokenizer, **options)
    deltas = [
        stream.push(ids[start : start + group], stop_token_id=stop_id)
        for start in range(0, len(ids), group)
    ]
    return join([*deltas, stream.finish(ended)])


def _encode_output(tokenizer: Tokenizer, raw: str) -> tuple[list[int], int | None]:
    """Tokenize model output: tags are single ids, a turn token is one only where it ends it."""
    stop_id = None
    for token in GLM.turn_tokens:
        if raw.endswith(token):
            raw, stop_id = raw.removesuffix(token), tokenizer.control_id(token)
    seam = new_seam()
    tags = set(tokenizer.controls.ids) - set(GLM.turn_tokens)
    ids = tokenizer.encode_prompt(
        remove_seams(tokenizer.controls.break_up(raw, seam, keep=tags), seam)
    )
    return (ids, None) if stop_id is None else ([*ids, stop_id], stop_id)


@cache
def _demo_tokenizer() -> Tokenizer:
    return Tokenizer.from_dir(DEMO_DIR)
