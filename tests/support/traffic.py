"""Random traffic for a scheduler in virtual time, and what may be said of every step of it.

A machine whose steps cost what their buckets say serves tenants of all kinds: chats that come back
with a longer prompt, floods, long prompts, urgent and patient requests, deadlines; some clients
leave, some steps fail. Nothing is kept but what is still running, so a run may be as long as it
likes.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from support.paged_counter import VOCAB_SIZE, QuickModel
from support.virtual_engine import VirtualEngine
from trnrt_engine.api import FinishReason, TokenDelta
from trnrt_engine.plan import SchedulerOutput
from trnrt_engine.step_times import StepTimes

CHECK_EVERY = 50
STALL_S = 0.05
MAX_NUM_SEQS = 5
MAX_WAITING = 60
NUM_CHATS = 24
WINDOW = 4096
PREFILL_BUCKETS = (64, 128, 256, 512, 1024)
DECODE_BUCKETS = tuple(range(1, MAX_NUM_SEQS + 1))
CONTEXT_BUCKETS = (512, 2048, WINDOW)

_SHAPES = StepTimes(
    prefill_buckets=PREFILL_BUCKETS,
    decode_buckets=DECODE_BUCKETS,
    context_buckets=CONTEXT_BUCKETS,
)


def step_cost_s(plan: SchedulerOutput) -> float:
    """Seconds of a step, from its buckets alone."""
    chunk = plan.prefill
    if chunk is not None:
        shape = _SHAPES.chunk_shape(chunk.start, len(chunk.token_ids))
        return 0.001 + shape.rows * (2e-5 + 1e-8 * shape.context)
    shape = _SHAPES.decode_shape(len(plan.decode), max(r.position for r in plan.decode) + 1)
    return 0.004 + 2e-4 * shape.rows + 3e-7 * shape.context


@dataclass
class Stream:
    """What is known of a request that has not ended."""

    arrived_s: float
    num_outputs: int = 0
    token_s: float = 0.0


@dataclass
class Tally:
    """What happened so far; times in virtual seconds."""

    submitted: int = 0
    ends: Counter[FinishReason] = field(default_factory=Counter)
    hit_tokens: int = 0
    gaps: int = 0
    longest_gap_s: float = 0.0
    longest_life_s: float = 0.0
    longest_queue: int = 0
    parked: int = 0


class TrafficEngine(VirtualEngine):
    """Checks every delta and keeps none; token k of a request must be its k-th output."""

    def __init__(self, *, depth: int) -> None:
        super().__init__(
            num_pages=300,
            page_size=64,
            max_num_seqs=MAX_NUM_SEQS,
            prefill_ahead=2,
            prefill_buckets=PREFILL_BUCKETS,
            context_buckets=CONTEXT_BUCKETS,
            max_model_len=WINDOW,
            num_bundle_slots=32,
            depth=depth,
            stall_s=STALL_S,
            cost=step_cost_s,
            model=QuickModel(),
            checks_every=CHECK_EVERY,
        )
        self.streams: dict[str, Stream] = {}
        self.tally = Tally()

    def note_plan(self, plan: SchedulerOutput) -> None:
        """Check that the batch is one."""
        assert len(plan.decode) <= MAX_NUM_SEQS
        self.tally.parked += len(self.scheduler.running) > MAX_NUM_SEQS

    def note_delta(self, delta: TokenDelta) -> None:
        """Check order and time of a request's tokens; an ended request says nothing more."""
        stream, tally = self.streams[delta.request_id], self.tally
        for token_id in delta.token_ids:
            assert token_id == stream.num_outputs % VOCAB_SIZE
            if stream.num_outputs > 1:  # between the first two it may have waited for a seat
                gap_s = self.now_s - stream.token_s
                tally.gaps += 1
                tally.longest_gap_s = max(tally.longest_gap_s, gap_s)
            stream.num_outputs += 1
            stream.token_s = self.now_s
        if delta.finish_reason is not None:
            del self.streams[delta.request_id]
            tally.ends[delta.finish_reason] += 1
            tally.hit_tokens += delta.num_cached_tokens
            tally.longest_life_s = max(tally.longest_life_s, self.now_s - stream.arrived_s)


class Traffic:
    """Clients of every kind, from one seed."""

    def __init__(self, *, seed: int, depth: int) -> None:
        self.engine = TrafficEngine(depth=depth)
        self._chance = random.Random(seed)
        self._chats: list[list[int]] = [[] for _ in range(NUM_CHATS)]

    def run(self, num_steps: int) -> Tally:
        """Do so many steps, then let everything end."""
        engine, chance = self.engine, self._chance
        tally = engine.tally
        for _ in range(num_steps):
            if len(engine.scheduler.waiting) < MAX_WAITING and chance.random() < 0.2:
                for _ in range(chance.choice([1, 1, 1, 1, 6])):
                    self._submit()
            if engine.streams and chance.random() < 0.01:
                engine.abort(chance.choice(list(engine.streams)))
            engine.step(fails=chance.random() < 0.001)
            tally.longest_queue = max(tally.longest_queue, len(engine.scheduler.waiting))
        engine.run_until_idle(max_steps=100_000)
        return tally

    def _submit(self) -> None:
        chance, tally = self._chance, self.engine.tally
        which = chance.randrange(NUM_CHATS)
        prompt = self._prompt(which)
        name = f"r{tally.submitted}"
        tally.submitted += 1
        self.engine.streams[name] = Stream(self.engine.now_s)
        self.engine.submit(
            name,
            prompt,
            max_tokens=chance.choice([1, 2, 5, 20, 60]),
            tenant=chance.choice(["", "flood", "flood", f"chat{which}"]),
            priority=chance.choice([0, 0, 0, 0, -2, 1, 5]),
            deadline_s=chance.choice([None, None, None, None, None, 0.5, 5.0]),
        )

    def _prompt(self, which: int) -> list[int]:
        """A chat's next turn, a new short prompt, or a long one."""
        chance = self._chance
        kind = chance.random()
        if kind < 0.5:
            chat = self._chats[which]
            if len(chat) > 1500 or chance.random() < 0.02:
                chat.clear()
            chat += [chance.randrange(VOCAB_SIZE)] * chance.randint(1, 200)
            return list(chat)
        length = chance.randint(1, 100) if kind < 0.97 else chance.randint(1000, 3500)
        return [chance.randrange(VOCAB_SIZE)] * length
