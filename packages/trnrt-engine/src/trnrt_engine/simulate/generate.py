"""Makes up sessions of coding agents: no text, only which tokens are equal to which.

A session is a system prompt, shared with others, and a history that grows by a model's answer and
the result of a tool, or what a user says, from turn to turn. Now and then a message in the middle
of it is rewritten, so that all behind it must be computed again; now and then the model starts
sub-agents, sessions of their own with a system prompt of theirs, and goes on when all have ended.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from trnrt_engine.simulate.trace import BLOCK_TOKENS, TraceRequest

GENERATION_PROMPT_TOKENS = 4  # open the answer; the next prompt need not repeat them


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionMix:
    """What the sessions are like. Sizes and pauses are medians of a log-normal of width `spread`.

    Fields:
        start_every_s: mean time between the starts of two sessions.
        num_turns: mean; geometric. max_context_tokens: a session ends before it exceeds this.
        num_systems: different system prompts. system_tokens, sub_system_tokens: of a session's
            and of a sub-agent's.
        first_tokens, tool_tokens, user_tokens, output_tokens: of one message.
        tool_pause_s: from an answer to the next prompt; with `user_share`, user_pause_s.
        rewrite_share: of turns before which one message of the history is rewritten.
        sub_agent_share: of turns that start one to three sub-agents.
    """

    num_sessions: int = 200
    seed: int = 0
    start_every_s: float = 60.0
    num_turns: float = 20.0
    max_context_tokens: int = 200_000
    num_systems: int = 3
    system_tokens: int = 12_000
    sub_system_tokens: int = 4_000
    first_tokens: int = 1_000
    tool_tokens: int = 900
    user_tokens: int = 120
    output_tokens: int = 100
    tool_pause_s: float = 4.0
    user_pause_s: float = 60.0
    user_share: float = 0.1
    rewrite_share: float = 0.04
    sub_agent_share: float = 0.06
    spread: float = 0.8

    def __post_init__(self) -> None:
        for name in ("user_share", "rewrite_share", "sub_agent_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be within 0 and 1")
        for name in ("num_sessions", "num_turns", "num_systems", "system_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 1")


@dataclass(slots=True)
class _Message:
    """Tokens of their own; `name` is different for different tokens."""

    name: int
    num_tokens: int


@dataclass(slots=True)
class _History:
    """Messages, and the ids of the whole blocks they make, as far as they are valid."""

    messages: list[_Message]
    block_ids: list[int] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(message.num_tokens for message in self.messages)

    def blocks(self, extra: _Message) -> list[int]:
        """Return the ids of all blocks, one for a partial last one, with a message behind."""
        pieces = _pieces([*self.messages, extra], skip=len(self.block_ids) * BLOCK_TOKENS)
        known = self.num_tokens // BLOCK_TOKENS
        fresh = [_block_id(block) for block in pieces]
        whole = [*self.block_ids, *fresh]
        self.block_ids = whole[:known]
        return whole

    def rewrite(self, index: int, message: _Message) -> None:
        """Put another message in place of one."""
        start = sum(message.num_tokens for message in self.messages[:index])
        del self.block_ids[start // BLOCK_TOKENS :]
        self.messages[index] = message


def generate(mix: SessionMix) -> list[TraceRequest]:
    """Make the sessions up, in the order of their starts; the same seed gives the same ones."""
    chance = random.Random(mix.seed)
    names = itertools.count()
    systems = [_Message(next(names), mix.system_tokens) for _ in range(mix.num_systems)]
    subs = [_Message(next(names), mix.sub_system_tokens) for _ in range(mix.num_systems)]
    requests: list[TraceRequest] = []
    time_s = 0.0
    for index in range(mix.num_sessions):
        which = chance.randrange(mix.num_systems)
        maker = _Maker(mix, random.Random(chance.random()), names, subs[which])
        start = _Start(f"s{index}", time_s=time_s)
        requests.extend(maker.session(start, systems[which]))
        time_s += chance.expovariate(1 / mix.start_every_s) if mix.start_every_s else 0.0
    return requests


@dataclass(frozen=True, slots=True)
class _Start:
    """How a session begins: at a time, or behind a request of its parent."""

    session: str
    parent: str = ""
    time_s: float = 0.0
    after: tuple[str, ...] = ()


class _Maker:
    """Makes up one session and its sub-agents."""

    def __init__(
        self,
        mix: SessionMix,
        chance: random.Random,
        names: Iterator[int],
        sub_system: _Message,
    ) -> None:
        self._mix = mix
        self._chance = chance
        self._names = names
        self._sub_system = sub_system

    def session(self, start: _Start, system: _Message) -> Iterator[TraceRequest]:
        """Yield the requests of a session, sub-agents between the turns that wait for them."""
        mix, chance = self._mix, self._chance
        history = _History([system, self._message(mix.first_tokens)])
        after, pause_s = list(start.after), 0.0
        for turn in itertools.count():
            if turn and chance.random() < mix.rewrite_share and len(history.messages) > 2:
                index = chance.randrange(1, len(history.messages) - 1)
                history.rewrite(index, self._message(history.messages[index].num_tokens))
            num_output = self._draw(mix.output_tokens)
            request = self._request(start, turn, history, num_output, after, pause_s)
            if request.num_tokens + num_output > mix.max_context_tokens:
                return
            yield request
            if chance.random() < 1 / mix.num_turns:
                return
            after = [request.id]
            if not start.parent and chance.random() < mix.sub_agent_share:
                for number in range(chance.randint(1, 3)):
                    child = _Start(f"{request.id}/{number}", start.session, after=(request.id,))
                    made = list(self._sub_agent(child))
                    yield from made
                    after.append(made[-1].id)
            is_user = chance.random() < mix.user_share
            pause_s = self._scatter(mix.user_pause_s if is_user else mix.tool_pause_s)
            history.messages.append(_Message(next(self._names), num_output))
            history.messages.append(self._message(mix.user_tokens if is_user else mix.tool_tokens))

    def _sub_agent(self, start: _Start) -> Iterator[TraceRequest]:
        fewer = replace(self._mix, num_turns=max(self._mix.num_turns / 3, 1.0))
        maker = _Maker(fewer, self._chance, self._names, self._sub_system)
        return maker.session(start, self._sub_system)

    def _request(
        self,
        start: _Start,
        turn: int,
        history: _History,
        num_output: int,
        after: list[str],
        pause_s: float,
    ) -> TraceRequest:
        stable = history.num_tokens
        opening = _Message(next(self._names), GENERATION_PROMPT_TOKENS)
        return TraceRequest(
            id=f"{start.session}.{turn}",
            session=start.session,
            parent=start.parent,
            time_s=round(start.time_s, 3),
            after=after,
            pause_s=round(pause_s, 3),
            num_tokens=stable + GENERATION_PROMPT_TOKENS,
            block_ids=history.blocks(opening),
            num_output_tokens=num_output,
            marks=[history.messages[0].num_tokens, stable],
        )

    def _message(self, median: int) -> _Message:
        return _Message(next(self._names), self._draw(median))

    def _draw(self, median: int) -> int:
        return max(1, round(self._scatter(median)))

    def _scatter(self, median: float) -> float:
        return median * math.exp(self._chance.gauss(0.0, self._mix.spread))


def _pieces(messages: list[_Message], *, skip: int) -> Iterator[list[tuple[int, int, int]]]:
    """Yield the (message, first token, count) of each block behind the first `skip` tokens."""
    block: list[tuple[int, int, int]] = []
    room, position = BLOCK_TOKENS, 0
    for message in messages:
        offset = max(skip - position, 0)
        position += message.num_tokens
        while offset < message.num_tokens:
            count = min(room, message.num_tokens - offset)
            block.append((message.name, offset, count))
            offset += count
            room -= count
            if not room:
                yield block
                block, room = [], BLOCK_TOKENS
    if block:
        yield block


def _block_id(block: list[tuple[int, int, int]]) -> int:
    return int.from_bytes(blake2b(repr(block).encode(), digest_size=7).digest(), "little")
