"""Records of kind `engine_ops`: a tiny engine stepped by hand, held against cold runs."""

from __future__ import annotations

import itertools
from typing import Any

from case_drivers.engine_session import PAGE_TOKENS, EngineSession
from case_drivers.operators import holds
from case_drivers.outcome import PASSED, Outcome, Status, failed

MAX_STEPS = 10_000


def run(record: dict[str, Any]) -> Outcome:
    """Run a record; where slots are scarce, in both ways they can be dealt.

    The records know one kind of state slots. Ours belong to sequences or to bundles: first every
    sequence of the batch gets one; where that leaves none for bundles, the record is also run with
    half of them for bundles. What it says of skipped checkpoints holds in the first way.
    """
    setup = record["setup"]
    num_working = min(setup["max_batch"], setup["state_slots"])
    outcome = _run_with(record, num_working, record["expect"])
    if num_working == setup["state_slots"] and outcome.status is Status.PASS:
        expect = [wanted for wanted in record["expect"] if "metric" not in wanted]
        outcome = _run_with(record, max(setup["state_slots"] // 2, 1), expect)
    return outcome


def _run_with(record: dict[str, Any], num_working: int, expect: list[dict[str, Any]]) -> Outcome:
    engine = EngineSession(record["setup"], num_working_slots=num_working)
    saved: dict[str, dict[str, int]] = {}
    for op in record["ops"]:
        engine.run_op(op, saved)
        if engine.num_steps > MAX_STEPS:
            return failed(f"still busy after {MAX_STEPS} steps")
    for wanted in expect:
        fault = _fault(engine, wanted, saved)
        if fault:
            return failed(f"with {num_working} working slots: {fault}")
    return PASSED


def _fault(
    engine: EngineSession, wanted: dict[str, Any], saved: dict[str, dict[str, int]]
) -> str | None:
    """Say how an expectation fails; None when it holds."""
    match wanted:
        case {"same_tokens_as_cold": name}:
            cold, warm = engine.cold_tokens(name), engine.tokens(name)
            return None if cold == warm else f"{name} gave {warm}, cold {cold}"
        case {"same_tokens": names}:
            given = [engine.tokens(name) for name in names]
            return None if all(g == given[0] for g in given) else f"{names} gave {given}"
        case {"finished": names}:
            ends = {name: engine.status(name) for name in names}
            return None if set(ends.values()) == {"finished"} else f"ended as {ends}"
        case {"first_token_order": names}:
            order = sorted(names, key=lambda name: engine.token_steps[name][0])
            return None if order == names else f"first tokens came in order {order}"
        case {"max_steps": limit}:
            return None if engine.num_steps <= limit else f"took {engine.num_steps} steps"
        case {"invariant_each_step": "page_owners_consistent"} | {"engine": "alive"}:
            return None  # checked after every step and operation; a dead engine raises
        case {"op": op, "value": value}:
            actual = _measure(engine, wanted, saved)
            value = _resolve(engine, value)
            return None if holds(actual, op, value) else f"{wanted}: is {actual}"
    return f"the driver does not know {wanted}"


def _measure(
    engine: EngineSession, wanted: dict[str, Any], saved: dict[str, dict[str, int]]
) -> Any:
    match wanted:
        case {"cached_tokens": name}:
            return engine.end(name).num_cached_tokens
        case {"status_of": name}:
            return engine.status(name)
        case {"indexer_positions_visible": name}:
            return engine.runner.visible[name]
        case {"delivered_tokens": name}:
            return len(engine.tokens(name))
        case {"stat": stat, "of": name}:
            return saved[name][stat]
        case {"metric": "checkpoint_skips_total"}:
            return engine.core.cache.counters.skipped_bundles
        case {"max_steps_between_tokens_of": name}:
            steps = engine.token_steps[name]
            return max(after - before for before, after in itertools.pairwise(steps))
        case {"steps_to_first_token": name}:
            return engine.token_steps[name][0] - engine.submitted_at[name]
    raise ValueError(f"the driver does not know {wanted}")


def _resolve(engine: EngineSession, value: Any) -> Any:
    """Turn `setup.x` into a number; pages are counted in ours."""
    if not (isinstance(value, str) and value.startswith("setup.")):
        return value
    name = value.removeprefix("setup.")
    if name == "device_pages":
        return engine.setup[name] * engine.setup["page_tokens"] // PAGE_TOKENS
    return engine.setup[name]
