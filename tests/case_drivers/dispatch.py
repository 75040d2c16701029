"""Reads case files and runs each record through the driver of its kind.

A driver is a module `case_drivers.<kind>` with `run(record) -> Outcome`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from case_drivers.due import waits_for
from case_drivers.outcome import Outcome, failed, not_yet

_TEXT_KINDS = ("parse", "text_stream", "byte_stream", "render", "render_ids")
_SERVER_KINDS = ("http", "http_raw", "http_generated", "http_ops", "router_ops")
_ENGINE_KINDS = ("engine_ops", "sampler", "indexer", "memory_plan", "index_math")
_WEIGHT_KINDS = ("weights", "files", "fp8_requant", "fp8_kv")
_MACHINE_KINDS = ("compile_cache", "launcher", "ranks", "kernel_guard")
KINDS = frozenset(_TEXT_KINDS + _SERVER_KINDS + _ENGINE_KINDS + _WEIGHT_KINDS + _MACHINE_KINDS)
_COMMON_FIELDS = ("id", "case", "area", "kind")


def read_records(path: Path) -> Iterator[tuple[str, dict[str, Any] | Outcome]]:
    """Yield (id, record) per line of a case file; a line that is no record yields its failure."""
    lines = path.read_text(encoding="utf-8").split("\n")
    if not any(line.strip() for line in lines):
        yield path.name, failed("the file holds no record")
    for number, line in enumerate(lines, 1):
        if line.strip():
            where = f"{path.name}:{number}"
            try:
                record = json.loads(line)
            except ValueError as error:
                yield where, failed(f"not JSON: {error}")
                continue
            if fault := _malformed(record):
                yield where, failed(fault)
            else:
                yield record["id"], record


def run_record(record: dict[str, Any]) -> Outcome:
    """Run one record; an exception of the driver is a failure, never the end of the run."""
    if fault := _malformed(record):
        return failed(fault)
    if record["kind"] not in KINDS:
        return failed(f"unknown kind {record['kind']!r}")
    if part := waits_for(record):
        return not_yet(f"waits for {part}")
    try:
        outcome = importlib.import_module(f"case_drivers.{record['kind']}").run(record)
    except Exception as error:
        return failed(f"{type(error).__name__}: {error}")
    if not isinstance(outcome, Outcome):
        return failed(f"the driver of {record['kind']} returned {outcome!r}")
    return outcome


def _malformed(record: object) -> str | None:
    if not isinstance(record, dict):
        return f"a record is an object, not {type(record).__name__}"
    for field in _COMMON_FIELDS:
        if not (isinstance(record.get(field), str) and record[field]):
            return f"field {field!r} is missing or no text"
    return None
