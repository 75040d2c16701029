"""The checks a build of the engine must pass before it serves; each raises an error of its own.

    law                the law of neutrality, on programs written by hand   LawBroken
    integrity          pages, slots, locks and requests add up              IntegrityError
    hit floor          what must hit does, whatever the order and the tier  HitFloorMissed
    restore assertion  what is restored is what its place promises          RestoreRefused
    self-test          the start-up proof of the engine itself              SelfTestFailed

The random programs of the law are in `law_machine`; the ones here are those every build runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from support.law_box import OFF, Alone, LawEngine, Setup
from support.law_machine import LawBroken, LawMachine, Tally
from support.law_traffic import Ask, tokens_of
from trnrt_engine.cache.report import DEVICE, DISK, HOST, Reason
from trnrt_engine.errors import IntegrityError, SelfTestFailed
from trnrt_engine.selftest import check_prefix_cache

if TYPE_CHECKING:
    from trnrt_kernels.models.glm5_next.model import Model

MAX_TOKENS = 1  # of a request that is asked for what it hits; its logprobs show the rest
TIERED = Setup(host_kib=8192, disk_kib=8192, extra_pages=8)
# Every order a request may run in.
ORDERS: tuple[dict[str, object], ...] = (
    {},
    {"priority": 3},
    {"priority": -3, "deadline_s": 60.0},
    {"tenant": "a"},
)


@dataclasses.dataclass(frozen=True)
class Bench:
    """What checks run on.

    Fields:
        models: by `index_kpool`.
        alone: answers of requests alone; worked out before a fault is injected.
    """

    models: dict[int, Model]
    alone: Alone


class HitFloorMissed(AssertionError):
    """A prompt computed more than its new tokens and what lies beyond its last grid position."""


class RestoreRefused(AssertionError):
    """What was about to be restored was not what its place promises; it was computed instead."""


def check_law(bench: Bench) -> None:
    """Run the programs of the law."""
    for setup, program in PROGRAMS:
        machine = LawMachine(bench.models, bench.alone, Tally())
        try:
            machine.start(setup)
            program(machine)
            machine.finish()
        finally:
            machine.close()


def check_hit_floor(bench: Bench) -> None:
    """Ask for what must hit, in every order, from the device and from below."""
    for setup in (TIERED, Setup(disk_kib=8192)):
        with _engine(bench, setup) as engine:
            _check_what_comes_back(engine, HOST if setup.host_kib else DISK)
    for fields in ORDERS:
        with _engine(bench, Setup(page_size=256, token_budget=512)) as engine:
            _check_conversation(engine, fields)


def check_restore(bench: Bench) -> None:
    """Take one prompt from every place it may lie in."""
    with _engine(bench, TIERED) as engine:
        prompt = tokens_of(0, 300)
        _ask(engine, prompt[:150])
        expected = _ask(engine, prompt, cache=OFF)
        _ask(engine, prompt)
        tiers = engine.core.cache.tiers
        for tier in (DEVICE, HOST, DISK):
            if tier != DEVICE:
                engine.core.cache.flush_device()
                _ask(engine, tokens_of(1, 150), cache_salt="another")  # takes the room over
            if tier == DISK:
                tiers.flush_tier(HOST, "")
            answer = _ask(engine, prompt)
            if answer[:2] != expected[:2]:
                raise LawBroken(f"what came from {tier} changed the answer")
            reason = engine.report(answer[2]).reason
            if reason in (Reason.MISMATCH, Reason.LOAD_FAILED):
                raise RestoreRefused(f"{tier}: {reason}")


def check_self_test(bench: Bench) -> None:
    """Start an engine as serving does, with every tier."""
    with _engine(bench, TIERED) as engine:
        check_prefix_cache(engine.core, is_exact=True)


Check = Callable[[Bench], None]
CHECKS: dict[str, tuple[Check, type[Exception]]] = {
    "law": (check_law, LawBroken),
    "integrity": (check_law, IntegrityError),
    "hit floor": (check_hit_floor, HitFloorMissed),
    "restore assertion": (check_restore, RestoreRefused),
    "self-test": (check_self_test, SelfTestFailed),
}


def _forks_and_repeats(machine: LawMachine) -> None:
    """Paths part on and off page borders; prompts end around the grid; some run side by side."""
    for keep in (300, 300, 257, 193, 320, 321):
        machine.send(Ask(keep=keep))
        machine.step(60)
    for branch, keep in enumerate((130, 192, 256, 300)):
        machine.send(Ask(keep=keep, branch=branch, more=100, max_tokens=4))
        machine.send(Ask(keep=keep, branch=branch, more=65, max_tokens=3, sampling=2))
    machine.step(100)
    machine.evict(0, 3, 2)
    machine.send(Ask(keep=450, marks=(150, 400), sampling=4))
    machine.send(Ask(base=1, keep=129))
    machine.step(100)
    machine.send(Ask(keep=450))


def _there_and_back(machine: LawMachine) -> None:
    """Conversations are spilled, pushed out by others, and come back; an engine is killed."""
    machine.send(Ask(keep=330, marks=(150,)))
    machine.send(Ask(base=1, keep=200))
    machine.step(100)
    for tier_is_lost in (False, True):
        machine.flush()
        machine.send(Ask(keep=100, branch=1, more=130, cache_salt="x"))
        machine.step(40)
        if tier_is_lost:
            machine.restart()
        machine.send(Ask(keep=330, more=20, max_tokens=4))
        machine.send(Ask(base=1, keep=200, branch=2, more=65))
        machine.step(100)


PROGRAMS: tuple[tuple[Setup, Callable[[LawMachine], None]], ...] = (
    (TIERED, _there_and_back),
    (Setup(token_budget=512), _forks_and_repeats),
    (Setup(16, page_size=256, token_budget=128, num_steps_ahead=1), _forks_and_repeats),
    (dataclasses.replace(TIERED, index_kpool=16, page_size=128), _there_and_back),
)


def _check_conversation(engine: LawEngine, fields: dict[str, object]) -> None:
    """What a chat does: asks again, goes on, shares its system text, is rewritten."""
    system, first = tokens_of(0, 150), tokens_of(1, 200)
    marks = {"marks": [150, 340]}
    _ask(engine, system + first, **marks, **fields)
    _expect(engine, system + first, 320, "a repeated prompt", **marks, **fields)
    _expect(engine, [*system, *first, *first], 320, "a growing prompt", **marks, **fields)
    _expect(engine, system + tokens_of(2, 200), 128, "a shared system text", **marks, **fields)
    _ask(engine, system + first[:120] + tokens_of(3, 90), **fields)
    rewritten = system + first[:120] + tokens_of(4, 90)
    _expect(engine, rewritten, 256, "the third path of a fork", **fields)
    _expect(engine, system + first, 320, "a repeated prompt behind a fork", **fields)


def _check_what_comes_back(engine: LawEngine, tier: str) -> None:
    """Prompts that a tier has room for come back from it when the device has lost them."""
    prompts = [tokens_of(seed, 200) for seed in range(6)]
    for prompt in prompts:
        _ask(engine, prompt)
    engine.core.cache.flush_device()
    for prompt in prompts:
        _expect(engine, prompt, 192, f"a prompt that lies on {tier}", tier=tier)


def _expect(
    engine: LawEngine, prompt: list[int], floor: int, what: str, *, tier: str = DEVICE, **fields
) -> None:
    _, _, name = _ask(engine, prompt, **fields)
    num_cached, report = engine.end(name).num_cached_tokens, engine.report(name)
    if num_cached < floor or report.tier != tier:
        raise HitFloorMissed(
            f"{what} hit {num_cached} tokens on {report.tier or 'no tier'} ({report.reason}), "
            f"not {floor} on {tier}"
        )


def _ask(engine: LawEngine, prompt: list[int], **fields) -> tuple[list[int], list[object], str]:
    """Run a request to its end; its tokens, logprobs and name."""
    name = f"r{len(engine.deltas)}"
    engine.submit(name, prompt, max_tokens=MAX_TOKENS, num_logprobs=20, **fields)
    engine.run()
    if engine.end(name).error is not None:
        raise LawBroken(f"{name} failed: {engine.end(name).error}")
    return engine.tokens(name), engine.logprobs(name), name


@contextmanager
def _engine(bench: Bench, setup: Setup) -> Iterator[LawEngine]:
    with TemporaryDirectory() as folder:
        engine = LawEngine(bench.models[setup.index_kpool], setup, Path(folder), lambda: 0.0)
        try:
            yield engine
        finally:
            engine.die()
