"""Reads the public schema of recorded coding-agent sessions: one JSON object a session.

Its block ids count within one file, so blocks of two files are never equal. What waited for what
is read from the recorded times: a request waits for those of its session that had ended when it
was sent, and a root's also for the sub-agents that had; the rest of the time is its pause.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from trnrt_engine.simulate.trace import BLOCK_TOKENS, TraceError, TraceRequest

EPSILON_S = 1e-3


class WekaRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request (`type` n or s), or a sub-agent with requests of its own.

    Fields:
        t: seconds from the session's start; inside a sub-agent some files count from its start.
    """

    t: float
    type: str
    num_tokens: int = msgspec.field(name="in", default=0)
    num_output_tokens: int = msgspec.field(name="out", default=0)
    hash_ids: list[int] = []
    api_time: float | None = None
    agent_id: str = ""
    duration_ms: float | None = None
    requests: list[WekaRequest] = []
    tool_tokens: int = 0
    system_tokens: int = 0


class WekaSession(msgspec.Struct, frozen=True, kw_only=True):
    """One file."""

    id: str
    block_size: int
    hash_id_scope: str
    requests: list[WekaRequest]
    models: list[str] = []
    tool_tokens: int = 0
    system_tokens: int = 0
    totals: Any = None


@dataclass(slots=True)
class _Session:
    """One conversation while it is read.

    Fields:
        system_tokens: of its prompts, tools included.
        first_after: what its first request waits for: (id, recorded end).
        open: requests nothing has waited for yet. last: what the newest request waited for.
    """

    name: str
    parent: str
    system_tokens: int
    first_after: list[tuple[str, float]]
    open: list[tuple[str, float]] = field(default_factory=list)
    last: list[tuple[str, float]] = field(default_factory=list)
    num_requests: int = 0


def read_weka(path: Path) -> list[TraceRequest]:
    """Read one file, or all `.json` files of a folder.

    Raises:
        TraceError: a file is not of the schema.
    """
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise TraceError(f"{path}: no .json file in it")
    return [request for file in files for request in _read_session(file)]


def _read_session(path: Path) -> list[TraceRequest]:
    try:
        session: WekaSession = msgspec.json.decode(path.read_bytes(), type=WekaSession)
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: no session of the weka schema: {error}") from error
    if session.block_size != BLOCK_TOKENS or session.hash_id_scope != "local":
        raise TraceError(
            f"{path}: block_size {session.block_size} and hash_id_scope "
            f"{session.hash_id_scope}; readable are {BLOCK_TOKENS} and local"
        )
    return _Reader(session).read()


class _Reader:
    """Turns one file into requests, in the order they were sent."""

    def __init__(self, session: WekaSession) -> None:
        self._session = session
        self._scope = zlib.crc32(session.id.encode()) << 32
        self._timed: list[tuple[float, TraceRequest]] = []

    def read(self) -> list[TraceRequest]:
        """Return the requests; what one waits for lies before it."""
        whole = self._session
        root = _Session(whole.id, "", whole.tool_tokens + whole.system_tokens, [])
        ended_children: list[tuple[str, float]] = []
        for item in sorted(whole.requests, key=lambda item: item.t):
            if item.type == "subagent":
                ended_children += self._read_child(item, root)
            else:
                joined = [end for end in ended_children if end[1] <= item.t + EPSILON_S]
                ended_children = [end for end in ended_children if end not in joined]
                self._add(root, item, item.t, joined)
        self._timed.sort(key=lambda timed: timed[0])
        return [request for _, request in self._timed]

    def _read_child(self, entry: WekaRequest, root: _Session) -> list[tuple[str, float]]:
        """Read a sub-agent; returns its last requests, with the end of the whole."""
        spawned_by = root.open[-1:] or root.last
        child = _Session(
            f"{root.name}/{entry.agent_id}",
            root.name,
            entry.tool_tokens + entry.system_tokens,
            spawned_by,
        )
        for item in sorted(entry.requests, key=lambda item: item.t):
            sent_s = item.t if item.t >= entry.t - EPSILON_S else entry.t + item.t
            self._add(child, item, sent_s, [])
        if entry.duration_ms is None:
            return child.open
        return [(name, entry.t + entry.duration_ms / 1000) for name, _ in child.open]

    def _add(
        self, session: _Session, item: WekaRequest, sent_s: float, joined: list[tuple[str, float]]
    ) -> None:
        if not item.hash_ids or item.num_tokens < 1:
            return
        ended = [end for end in session.open if end[1] <= sent_s + EPSILON_S]
        session.open = [end for end in session.open if end not in ended]
        if not ended:
            ended = session.last if session.num_requests else session.first_after
        session.last = ended
        waited = [*ended, *joined]
        name = f"{session.name}#{session.num_requests}"
        session.num_requests += 1
        session.open.append((name, sent_s + (item.api_time or 0.0)))
        num_tokens = min(item.num_tokens, len(item.hash_ids) * BLOCK_TOKENS)
        num_blocks = -(-num_tokens // BLOCK_TOKENS)
        ends_s = max((end for _, end in waited), default=sent_s)
        marks = {min(session.system_tokens, num_tokens), num_tokens} - {0}
        request = TraceRequest(
            id=name,
            session=session.name,
            parent=session.parent,
            time_s=sent_s,
            after=[name for name, _ in waited],
            pause_s=max(sent_s - ends_s, 0.0) if waited else 0.0,
            num_tokens=num_tokens,
            block_ids=[self._scope + block_id for block_id in item.hash_ids[:num_blocks]],
            num_output_tokens=max(item.num_output_tokens, 1),
            marks=sorted(marks),
        )
        self._timed.append((sent_s, request))
