"""Kind `http`: one request to the API server over a scripted engine."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any

import httpx

from case_drivers.operators import all_hold, holds
from case_drivers.outcome import PASSED, Outcome, failed
from case_drivers.scripted_server import ScriptedServer, scripted_server
from case_drivers.sse import EventLog, check

Record = dict[str, Any]
Entry = dict[str, Any]

_ANYTHING = ("*", ["*"])
_CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back for one request."""

    status: int
    is_stream: bool
    text: str
    headers_s: float

    @property
    def log(self) -> EventLog:
        return EventLog(self.text, self.headers_s)


def run(record: Record) -> Outcome:
    alternatives = record.get("accept_instead", [])
    is_anything_fine = any(alternative in _ANYTHING for alternative in alternatives)
    repeats = max(entry.get("repeat", 1) for entry in record["expect"])
    with scripted_server(record) as server:
        replies = [_send(server, record) for _ in range(repeats)]
        if is_anything_fine:
            return PASSED
        faults = [
            _first_fault(expect, replies, server) for expect in (record["expect"], *alternatives)
        ]
    return failed(faults[0] or "") if all(faults) else PASSED


def expand(value: Any) -> Any:
    """Write out `{"$repeat": s, "times": n}` anywhere in a request."""
    if isinstance(value, dict):
        if value.keys() == {"$repeat", "times"}:
            return value["$repeat"] * value["times"]
        return {key: expand(item) for key, item in value.items()}
    return [expand(item) for item in value] if isinstance(value, list) else value


def _send(server: ScriptedServer, record: Record) -> Reply:
    body = record.get("body_text")
    if body is None:
        body = json.dumps(expand(record["request"]))
    headers = {"content-type": "application/json", **record.get("headers", {})}
    started = time.monotonic()
    with server.router.http.stream(
        record.get("method", "POST"),
        record.get("endpoint", _CHAT),
        content=body.encode(),
        headers=headers,
    ) as response:
        headers_s = time.monotonic() - started
        try:
            text = response.read().decode()
        except httpx.RemoteProtocolError:  # the server cut the stream: what came is the reply
            text = ""
        kind = response.headers.get("content-type", "")
        return Reply(response.status_code, kind.startswith("text/event-stream"), text, headers_s)


def _first_fault(expect: list[Entry], replies: list[Reply], server: ScriptedServer) -> str | None:
    for entry in expect:
        reply = replies[entry.get("repeat", 1) - 1]
        if not _is_met(entry, reply, server):
            return f"{json.dumps(entry)} is not met by {reply.status} {reply.text[:400]}"
    return None


def _is_met(entry: Entry, reply: Reply, server: ScriptedServer) -> bool:
    wanted = entry.get("value")
    if "status" in entry:
        return holds(reply.status, entry["status"], wanted)
    if "prompt_text" in entry:
        return bool(server.engine.requests) and holds(
            server.prompt_text(), entry["prompt_text"], wanted
        )
    if "sse" in entry:
        return reply.is_stream and check(reply.log, entry)
    if "path" in entry:
        return all_hold(json.loads(reply.text), entry["path"], entry["op"], wanted)
    raise ValueError(f"unknown expectation {entry}")
