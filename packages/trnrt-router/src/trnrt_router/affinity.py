"""Which engine a request should go to: session first, then known prefix, then load.

A session (exact equality of its key) stays on the engine that served it, because its cache lies
there. A key seen for the first time follows its parent session, else goes to the engine known to
hold the longest prefix of the prompt, else to the lighter one: a key that is never seen twice
costs nothing. Everything is bounded by count and age; when full, the oldest entry goes.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trnrt_router.errors import InvalidRequest

MAX_KEY_CHARS = 512
MAX_SESSIONS = 100_000
MAX_PREFIXES = 200_000
MAX_IDLE_S = 4 * 3600.0

# The ladder of design section 8; a body field is named by itself, a header by its lower-case name.
_BODY_FIRST = "session_id"
_HEADERS_BEFORE_CACHE_KEY = (
    "x-session-id",
    "x-session-affinity",
    "x-dynamo-session-id",
    "x-smg-routing-key",
)
_BODY_CACHE_KEY = "prompt_cache_key"
_HEADERS_LAST = ("x-correlation-id",)
_PARENT_HEADER = "x-dynamo-parent-session-id"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteKey:
    """What affinity knows of one request."""

    session: str | None = None
    parent: str | None = None
    prefixes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A ready engine as affinity sees it."""

    name: str
    num_in_flight: int
    max_num_seqs: int

    @property
    def is_full(self) -> bool:
        return self.num_in_flight >= self.max_num_seqs


def session_key(
    body: Mapping[str, str | None], headers: Mapping[str, str]
) -> tuple[str | None, str | None]:
    """Return (session, parent session) of a request, both None where it names none.

    Args:
        body: the body's `session_id` and `prompt_cache_key`.
        headers: by lower-case name.

    Raises:
        InvalidRequest: a key is longer than `MAX_KEY_CHARS`.
    """
    ladder = (
        (_BODY_FIRST, body.get(_BODY_FIRST)),
        *((name, headers.get(name)) for name in _HEADERS_BEFORE_CACHE_KEY),
        (_BODY_CACHE_KEY, body.get(_BODY_CACHE_KEY)),
        *((name, headers.get(name)) for name in _HEADERS_LAST),
    )
    # Every rung is checked, so that a hostile key is refused whichever rung wins.
    for name, value in (*ladder, (_PARENT_HEADER, headers.get(_PARENT_HEADER))):
        if value and len(value) > MAX_KEY_CHARS:
            raise InvalidRequest(
                f"{name} has {len(value)} characters, at most {MAX_KEY_CHARS} are allowed",
                param=name,
            )
    session = next((value for _, value in ladder if value), None)
    return session, headers.get(_PARENT_HEADER) or None


def prefix_hashes(token_ids: Sequence[int], *, salt: str = "") -> tuple[bytes, ...]:
    """Hash the prompt's prefixes, shortest first, at ever wider steps.

    Steps are 64 tokens up to 1,024, then 256 up to 16,384, then 1,024: a million-token prompt
    has about 1,100 of them.
    """
    digest = hashlib.blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=8)
    hashes: list[bytes] = []
    position = 0
    while True:
        step = 64 if position < 1024 else 256 if position < 16_384 else 1024
        if position + step > len(token_ids):
            return tuple(hashes)
        digest.update(array("I", token_ids[position : position + step]).tobytes())
        hashes.append(digest.digest())
        position += step


@dataclass(slots=True)
class _Binding:
    engine: str
    used_at: float


@dataclass(slots=True)
class Affinity:
    """The table of sessions and prefixes; holds no reference to an engine, only its name."""

    clock: Callable[[], float] = time.monotonic
    max_sessions: int = MAX_SESSIONS
    max_prefixes: int = MAX_PREFIXES
    max_idle_s: float = MAX_IDLE_S
    _sessions: OrderedDict[str, _Binding] = field(default_factory=OrderedDict)
    _num_sessions: Counter[str] = field(default_factory=Counter)
    _prefixes: OrderedDict[bytes, frozenset[str]] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._sessions)

    def bound_engine(self, session: str | None) -> str | None:
        """Return the engine a session is bound to."""
        binding = self._sessions.get(session) if session is not None else None
        return binding.engine if binding else None

    def rank(self, key: RouteKey, candidates: Sequence[Candidate]) -> list[str]:
        """Order the ready engines from the best home to the last resort.

        A session's or its parent's engine comes first; it is absent from `candidates` when it is
        dead, and the session then moves. The holder of the longest prefix is preferred only while
        it has a free slot: a shared system prompt must not pull every session onto one engine.
        """
        self._expire()
        known = {candidate.name for candidate in candidates}
        home = self.bound_engine(key.session) or self.bound_engine(key.parent)
        depth = self._prefix_depth(key.prefixes, known)
        ordered = sorted(
            candidates,
            key=lambda c: (
                c.name != home,
                c.is_full,
                -depth[c.name],
                c.num_in_flight,
                self._num_sessions[c.name],
                c.name,
            ),
        )
        return [candidate.name for candidate in ordered]

    def bind(self, key: RouteKey, engine: str) -> None:
        """Remember that `engine` accepted a request of this key."""
        if key.session is not None:
            self._unbind(key.session)
            self._sessions[key.session] = _Binding(engine, self.clock())
            self._num_sessions[engine] += 1
            if len(self._sessions) > self.max_sessions:
                self._unbind(next(iter(self._sessions)))
        for prefix in key.prefixes:
            holders = self._prefixes.pop(prefix, frozenset())
            self._prefixes[prefix] = holders | {engine}
        while len(self._prefixes) > self.max_prefixes:
            self._prefixes.popitem(last=False)

    def forget_cache_of(self, engine: str) -> None:
        """Drop the prefixes of an engine whose process is gone; its sessions move on next use."""
        for prefix, holders in list(self._prefixes.items()):
            if engine in holders:
                rest = holders - {engine}
                if rest:
                    self._prefixes[prefix] = rest
                else:
                    del self._prefixes[prefix]

    def _prefix_depth(self, prefixes: Sequence[bytes], engines: set[str]) -> Counter[str]:
        depth: Counter[str] = Counter()
        for count, prefix in enumerate(prefixes, start=1):
            holders = self._prefixes.get(prefix)
            if not holders:
                break
            for engine in holders & engines:
                depth[engine] = count
        return depth

    def _expire(self) -> None:
        oldest_allowed = self.clock() - self.max_idle_s
        while self._sessions:
            session, binding = next(iter(self._sessions.items()))
            if binding.used_at >= oldest_allowed:
                break
            self._unbind(session)

    def _unbind(self, session: str) -> None:
        binding = self._sessions.pop(session, None)
        if binding is not None:
            self._num_sessions[binding.engine] -= 1
