"""The law of neutrality as a state machine: whatever happens, an answer is the request's own.

Real steps of a tiny model in numeric mode `strict`. Tokens and logprobs are compared bit by bit
with a fresh engine that caches nothing; pages, slots, locks and requests are added up after every
step and every event. The rules are ordinary methods, so a program may also be written by hand.
What may be drawn depends on nothing but what was drawn: copies take their time in other threads.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.law_box import MAX_PROMPT, STEP_S, Alone, LawEngine, Setup
from support.law_traffic import (
    SAMPLINGS,
    SESSIONS,
    Ask,
    engine_numbers,
    setups,
    some_asks,
    tokens_of,
)
from trnrt_engine.api import FinishReason, TokenDelta
from trnrt_engine.cache.entries import EntryKind
from trnrt_engine.cache.report import DEVICE, HOST
from trnrt_engine.core import stats_of

if TYPE_CHECKING:
    from trnrt_kernels.models.glm5_next.model import Model

MAX_REQUESTS = 24  # open at once
MAX_STEPS = 5_000  # in which all that is open must end
RESTART_AFTER = 20  # steps: an engine that always dies young proves little


class LawBroken(AssertionError):
    """An answer is not that of the request alone, or a request ended as it must not."""


@dataclass
class Tally:
    """What the examples of a run did, so that a run that proved nothing is seen.

    Fields:
        has_failed: an example broke the law; more of them are run to make it small.
    """

    counts: Counter[str] = field(default_factory=Counter)
    has_failed: bool = False

    def lines(self) -> str:
        """Format all counts."""
        return " ".join(f"{name}={count}" for name, count in sorted(self.counts.items()))


@dataclass
class _Asked:
    ask: Ask
    name: str
    engine: int
    prompt: list[int]
    num_prior: int
    due_s: float


class LawMachine(RuleBasedStateMachine):
    """Traffic and mishaps on the engines of a box."""

    def __init__(self, models: dict[int, Model], alone: Alone, tally: Tally) -> None:
        super().__init__()
        self._models = models
        self._alone = alone
        self._tally = tally
        self._folder = TemporaryDirectory()
        self._names = itertools.count()
        self.now_s = 100.0
        self.num_steps = 0
        self.setup = Setup()
        self.engines: list[LawEngine] = []
        self.open: dict[str, _Asked] = {}
        self.texts: list[list[int]] = []

    @initialize(setup=setups)
    def start(self, setup: Setup) -> None:
        """Open the engines."""
        self.setup = setup
        self.texts = [tokens_of(seed, MAX_PROMPT) for seed in (0, 1)]
        self.engines = [self._make_engine() for _ in range(setup.num_engines)]
        self._tally.counts["examples"] += 1

    @rule(some=some_asks, engine=engine_numbers, steps=st.sampled_from([8, 0, 2, 40]))
    def submit(self, some: list[Ask], engine: int, steps: int) -> None:
        """Send requests unless too many are open, and let some steps pass."""
        for ask in some[: MAX_REQUESTS - len(self.open)]:
            self.send(ask, engine)
        self.step(steps, engine)

    @rule(
        some=some_asks,
        back=st.integers(0, 4),
        engine=engine_numbers,
        steps=st.sampled_from([40, 8, 0]),
        lost=st.sampled_from([(), (DEVICE,), (DEVICE, HOST)]),
    )
    def go_on(
        self, some: list[Ask], back: int, engine: int, steps: int, lost: tuple[str, ...]
    ) -> None:
        """Send one of the latest texts again, or what goes on from it; some tiers have lost it."""
        cache = self._engine(engine).core.cache
        if DEVICE in lost:
            cache.flush_device()
        if HOST in lost and cache.tiers is not None and not cache.is_copying:
            cache.tiers.flush_tier(HOST, "")
        base = max(len(self.texts) - 1 - back, 0)
        self.submit([replace(ask, base=base, keep=MAX_PROMPT) for ask in some], engine, steps)

    def send(self, ask: Ask, engine: int = 0) -> str:
        """Send a request and return its name."""
        text = self.texts[ask.base % len(self.texts)]
        prompt = (text[: ask.keep] + tokens_of(100 + ask.branch, ask.more))[:MAX_PROMPT]
        num_prior = 0
        if ask.num_prior:
            outputs, _ = self._expected(ask, prompt)
            num_prior = min(ask.num_prior, len(outputs) - 1)
        self.texts.append(prompt)
        return self._send(ask, prompt, num_prior, engine % len(self.engines))

    @rule(count=st.integers(1, 12), engine=engine_numbers)
    def step(self, count: int = 1, engine: int = 0) -> None:
        """Let steps pass."""
        number = engine % len(self.engines)
        for _ in range(count):
            goes_on = self.engines[number].step()
            self._tally.counts["steps"] += 1
            self.num_steps += 1
            self.now_s += STEP_S
            self._take_ends(number)
            if not goes_on:
                return

    @rule(which=st.integers(0, MAX_REQUESTS))
    def abort(self, which: int) -> None:
        """Let a client go away."""
        if self.open:
            asked = list(self.open.values())[which % len(self.open)]
            self.engines[asked.engine].abort(asked.name)
            self._take_ends(asked.engine)

    @rule(engine=engine_numbers, which=st.integers(0, MAX_REQUESTS), steps=st.sampled_from([2, 0]))
    def preempt(self, engine: int, which: int, steps: int) -> None:
        """Take a running request's room away."""
        scheduler = self._engine(engine).core.scheduler
        if scheduler.running:
            scheduler.preempt(scheduler.running[which % len(scheduler.running)].request_id)
        self.step(steps, engine)

    @rule(seconds=st.sampled_from([0.2, 3.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass: lives and deadlines end, loads are late."""
        self.now_s += seconds

    @rule(engine=engine_numbers, pages=st.integers(0, 6), bundles=st.integers(0, 3))
    def evict(self, engine: int, pages: int, bundles: int) -> None:
        """Give up what would go first."""
        self._engine(engine).evict(num_pages=pages, num_bundles=bundles)

    @rule(engine=engine_numbers, salt=st.sampled_from([None, "", "x"]), everywhere=st.booleans())
    def flush(self, engine: int = 0, salt: str | None = None, everywhere: bool = False) -> None:
        """Forget on the device, or in all tiers."""
        cache = self._engine(engine).core.cache
        (cache.flush if everywhere else cache.flush_device)(salt)

    @rule(engine=engine_numbers, session=st.sampled_from(SESSIONS))
    def release(self, engine: int, session: str) -> None:
        """Let go of what a session pinned."""
        self._engine(engine).core.cache.release_session(session)

    @precondition(lambda self: self._has_tiers)
    @rule(engine=engine_numbers, num_copies=st.sampled_from([0, 1, 4]))
    def hold_copies(self, engine: int, num_copies: int) -> None:
        """Let some more copies pass and no others."""
        held = self._engine(engine)
        held.gate.set(num_permits=num_copies)
        held.settle_copies()

    @precondition(lambda self: self._has_tiers)
    @rule(engine=engine_numbers)
    def let_copies_pass(self, engine: int) -> None:
        """Let all copies pass."""
        freed = self._engine(engine)
        freed.gate.set(is_open=True)
        freed.settle_copies()

    @precondition(lambda self: self._has_tiers)
    @rule(engine=engine_numbers, kind=st.sampled_from(list(EntryKind)), which=st.integers(0, 50))
    def lose_entry(self, engine: int, kind: EntryKind, which: int) -> None:
        """Lose one page, or the states of one bundle, in a lower tier."""
        self._engine(engine).lose_entry(kind, which)

    @rule(engine=engine_numbers, resumes=st.booleans())
    def restart(self, engine: int = 0, resumes: bool = False) -> None:
        """Kill an engine, start it anew on the same folders, send again what it had open."""
        number = engine % len(self.engines)
        if self.num_steps < RESTART_AFTER:
            return
        self._count(self.engines[number])
        self.engines[number].die()
        dead, self.engines[number] = self.engines[number], self._make_engine()
        self._tally.counts["restarts"] += 1
        self.num_steps = 0
        for asked in [asked for asked in self.open.values() if asked.engine == number]:
            del self.open[asked.name]
            self._judge(asked, dead)
            if resumes:
                num_prior = asked.num_prior + len(dead.tokens(asked.name))
                self._send(asked.ask, asked.prompt, num_prior, number)

    @invariant()
    def adds_up(self) -> None:
        """Every page, slot, lock and request is accounted for."""
        for engine in self.engines:
            engine.core.scheduler.check_integrity()

    def finish(self) -> None:
        """Let everything end; then nothing is held by anybody."""
        for number, engine in enumerate(self.engines):
            engine.gate.set(is_open=True)
            self.step(MAX_STEPS, number)
            self._count(engine)
        if self.open:
            raise LawBroken(f"requests that never ended: {sorted(self.open)}")
        for engine in self.engines:
            for session in SESSIONS:
                engine.core.cache.release_session(session)
            if not engine.is_all_free():
                raise LawBroken("pages or slots are held when no request is left")

    def teardown(self) -> None:
        """Finish, unless something is broken already, and close."""
        self._tally.has_failed |= isinstance(sys.exc_info()[1], Exception)
        try:
            if sys.exc_info()[0] is None:
                self.finish()
        except Exception:
            self._tally.has_failed = True
            raise
        finally:
            self.close()

    def close(self) -> None:
        """Leave the stores and remove their files."""
        for engine in self.engines:
            engine.die()
        self._folder.cleanup()

    @property
    def _has_tiers(self) -> bool:
        return bool(self.setup.host_kib or self.setup.disk_kib)

    def _engine(self, number: int) -> LawEngine:
        return self.engines[number % len(self.engines)]

    def _make_engine(self) -> LawEngine:
        model = self._models[self.setup.index_kpool]
        return LawEngine(model, self.setup, Path(self._folder.name), self._read_clock)

    def _read_clock(self) -> float:
        self.now_s += self.setup.tick_s
        return self.now_s

    def _expected(self, ask: Ask, prompt: list[int]) -> tuple[list[int], list[object]]:
        sampling = {**SAMPLINGS[ask.sampling], "max_tokens": ask.max_tokens}
        return self._alone.answer(self.setup.index_kpool, prompt, sampling)

    def _send(self, ask: Ask, prompt: list[int], num_prior: int, number: int) -> str:
        name = f"r{next(self._names)}"
        prior = self._expected(ask, prompt)[0][:num_prior] if num_prior else []
        due_s = self.now_s + (math.inf if ask.deadline_s is None else ask.deadline_s)
        self.open[name] = _Asked(ask, name, number, prompt, num_prior, due_s)
        self._tally.counts["requests"] += 1
        self.engines[number].submit(
            name,
            prompt,
            prior=prior,
            max_tokens=ask.max_tokens,
            marks=[mark for mark in ask.marks if mark <= len(prompt)],
            cache=ask.cache,
            cache_salt=ask.cache_salt,
            priority=ask.priority,
            tenant=ask.tenant,
            deadline_s=ask.deadline_s,
            **SAMPLINGS[ask.sampling],
        )
        self._take_ends(number)
        return name

    def _take_ends(self, number: int) -> None:
        """Judge the requests of an engine that have ended."""
        engine = self.engines[number]
        for asked in [asked for asked in self.open.values() if asked.engine == number]:
            deltas = engine.deltas.get(asked.name)
            if deltas and deltas[-1].finish_reason is not None:
                del self.open[asked.name]
                self._judge(asked, engine)

    def _judge(self, asked: _Asked, engine: LawEngine) -> None:
        """Compare what a request was given; one that was cut short has the beginning of it."""
        deltas = engine.deltas.get(asked.name, [])
        tokens = engine.tokens(asked.name)
        logprobs = engine.logprobs(asked.name) if deltas else []
        end = deltas[-1] if deltas else TokenDelta(request_id=asked.name)
        reason = end.finish_reason
        self._tally.counts[f"ended_{reason or 'lost'}"] += 1
        is_late = asked.due_s <= self.now_s
        if reason is FinishReason.ERROR and not (is_late and end.error.kind == "DeadlineExceeded"):
            raise LawBroken(f"{asked.name} failed: {end.error}")
        is_cut = is_late or reason in (None, FinishReason.ABORT)
        if is_cut and not tokens:
            return
        outputs, entries = self._expected(asked.ask, asked.prompt)
        outputs, entries = outputs[asked.num_prior :], entries[asked.num_prior :]
        if is_cut:
            outputs, entries = outputs[: len(tokens)], entries[: len(logprobs)]
        if tokens != outputs:
            raise LawBroken(f"{asked.name}: tokens {tokens}, alone {outputs}")
        if logprobs != entries:
            raise LawBroken(f"{asked.name}: logprobs {logprobs}, alone {entries}")
        if not is_cut:
            self.texts.append(asked.prompt + self._expected(asked.ask, asked.prompt)[0])

    def _count(self, engine: LawEngine) -> None:
        """Take an engine's own counters into the tally, at its end."""
        stats, counts = stats_of(engine.core), self._tally.counts
        counts["evicted_pages"] += stats.evicted_pages
        counts["evicted_bundles"] += stats.evicted_bundles
        counts["late_loads"] += stats.cache_late_loads
        counts["failed_loads"] += stats.cache_failed_loads
        for way, num_preempted in stats.preemptions.items():
            counts[f"preempted_{way}"] += num_preempted
        for tier, num_hits in engine.count_hits().items():
            counts[f"hits_{tier}"] += num_hits
        for tier, num_bytes in stats.cache_bytes_written.items():
            counts[f"bytes_to_{tier}"] += num_bytes
