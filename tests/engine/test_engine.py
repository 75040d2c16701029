"""The engine's asyncio side and its thread, on a model of plain ints."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from support.counting_core import GatedRunner, counting_core
from support.paged_counter import expected_outputs
from trnrt_engine.api import EngineRequest, FinishReason, SamplingParams, TokenDelta
from trnrt_engine.engine import Engine
from trnrt_engine.errors import (
    ContextTooLong,
    DuplicateRequest,
    EngineOverloaded,
    EngineUnavailable,
    InvalidRequest,
    RequestTooLarge,
)

PROMPT = [3, 1, 4, 1, 5]
QUICK_S = 0.1


def request(name: str, *, prompt: list[int] | None = None, **sampling) -> EngineRequest:
    return EngineRequest(
        request_id=name,
        token_ids=prompt or PROMPT,
        sampling=SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **sampling}),
    )


@asynccontextmanager
async def engine_of(
    runner: GatedRunner, *, max_waiting: int = 8, **fields
) -> AsyncIterator[Engine]:
    engine = await Engine.run(lambda: counting_core(runner, **fields), max_waiting=max_waiting)
    try:
        yield engine
    finally:
        runner.gate.set()
        await engine.close()


def run_with_engine(body: Callable, *, max_waiting: int = 8, **fields) -> None:
    """Run `body(engine, runner)` in an event loop; nothing may be left of the engine after it."""

    async def main() -> None:
        runner = GatedRunner(page_size=16)
        async with engine_of(runner, max_waiting=max_waiting, **fields) as engine:
            await body(engine, runner)

    asyncio.run(main())
    assert not loop_threads()


def loop_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "trnrt-engine-loop"]


async def collect(stream: AsyncIterator[TokenDelta]) -> list[TokenDelta]:
    return [delta async for delta in stream]


def ids(deltas: list[TokenDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


async def wait_until(condition: Callable[[], bool], *, limit_s: float = 10.0) -> None:
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.001)


async def hold(engine: Engine, runner: GatedRunner) -> None:
    """Close the gate and wait until a step stands before it."""
    runner.gate.clear()
    await asyncio.to_thread(runner.is_held.wait, 10.0)
    assert runner.is_held.is_set()


def is_all_free(engine: Engine) -> bool:
    stats = engine.stats()
    return (stats.free_pages, stats.free_state_slots) == (
        stats.total_pages,
        stats.total_state_slots,
    )


@pytest.mark.parametrize("num_steps_ahead", [0, 1])
def test_streams_hold_the_models_tokens(num_steps_ahead: int) -> None:
    async def body(engine: Engine, runner: GatedRunner) -> None:
        prompts = [[index + 1] * (index * 20 + 1) for index in range(7)]
        streams = [engine.add(request(f"r{i}", prompt=p)) for i, p in enumerate(prompts)]
        answers = await asyncio.gather(*(collect(stream) for stream in streams))
        for prompt, deltas in zip(prompts, answers, strict=True):
            assert ids(deltas) == expected_outputs(prompt, 8)
            assert [d.finish_reason for d in deltas] == [None] * 7 + [FinishReason.LENGTH]
        assert is_all_free(engine)
        assert engine.stats().requests_finished == 7

    run_with_engine(body, num_steps_ahead=num_steps_ahead)


def test_frames_carry_one_list_a_step() -> None:
    async def body(engine: Engine, runner: GatedRunner) -> None:
        frames = engine.frames()
        runner.gate.clear()
        for name in ("a", "b"):
            await engine.submit(request(name))
        runner.gate.set()
        seen: list[list[TokenDelta]] = []
        async for deltas in frames:
            seen.append(deltas)
            if sum(d.finish_reason is not None for ds in seen for d in ds) == 2:
                break
        assert all(len({d.request_id for d in deltas}) == len(deltas) for deltas in seen)
        assert max(len(deltas) for deltas in seen) == 2
        assert ids([d for ds in seen for d in ds if d.request_id == "a"]) == expected_outputs(
            PROMPT, 8
        )

    run_with_engine(body)


def test_held_step_delays_neither_health_nor_abort() -> None:
    async def body(engine: Engine, runner: GatedRunner) -> None:
        runner.gate.clear()
        stream = engine.add(request("a", max_tokens=50))
        await hold(engine, runner)
        await wait_until(lambda: (engine.health().step_running_s or 0) > 0.2)
        started_s = time.monotonic()
        health, stats = engine.health(), engine.stats()
        await engine.abort("a")
        other = engine.add(request("b"))
        assert time.monotonic() - started_s < QUICK_S
        assert health.is_ready
        assert stats.num_running == 1
        runner.gate.set()
        assert (await collect(stream))[-1].finish_reason is FinishReason.ABORT
        assert ids(await collect(other)) == expected_outputs(PROMPT, 8)
        assert is_all_free(engine)

    run_with_engine(body)


@pytest.mark.slow
def test_step_held_for_ten_seconds_leaves_the_engine_answering() -> None:
    async def body(engine: Engine, runner: GatedRunner) -> None:
        runner.gate.clear()
        stream = engine.add(request("a", max_tokens=50))
        await hold(engine, runner)
        worst_s = 0.0
        while (engine.health().step_running_s or 0.0) < 10.0:
            started_s = time.monotonic()
            assert engine.health().is_ready
            engine.stats()
            worst_s = max(worst_s, time.monotonic() - started_s)
            await asyncio.sleep(0.05)
        started_s = time.monotonic()
        await engine.abort("a")
        assert max(worst_s, time.monotonic() - started_s) < QUICK_S
        runner.gate.set()
        assert (await collect(stream))[-1].finish_reason is FinishReason.ABORT

    run_with_engine(body)


def test_abort_takes_two_steps_at_most() -> None:
    async def body(engine: Engine, runner: GatedRunner) -> None:
        runner.gate.clear()
        streams = [engine.add(request(name, max_tokens=300)) for name in ("a", "b")]
        await hold(engine, runner)
        steps = len(runner.plans)
        await engine.abort("a")
        runner.gate.set()
        await collect(streams[0])
        runner.gate.clear()
        later = [
            row.request.request_id
            for plan in runner.plans[steps:]
            for row in (*plan.decode, *([plan.prefill] if plan.prefill else []))
        ]
        assert later.count("a") <= 1
        runner.gate.set()
        await engine.abort("b")
        await collect(streams[1])
        assert is_all_free(engine)

    run_with_engine(body)


def test_leaving_a_stream_aborts_its_request() -> None:
    async def body(engine: Engine, runner: GatedRunner) -> None:
        runner.gate.clear()
        async with engine.add(request("a", max_tokens=400)):
            await hold(engine, runner)
        runner.gate.set()
        await wait_until(lambda: is_all_free(engine))
        assert engine.stats().requests_aborted == 1

    run_with_engine(body)


def test_abort_storm_leaves_everything_free() -> None:
    async def body(engine: Engine, runner: GatedRunner) -> None:
        streams = {f"r{i}": engine.add(request(f"r{i}", max_tokens=200)) for i in range(60)}
        for index, name in enumerate(streams):
            await engine.abort(name)
            if index % 7 == 0:
                await asyncio.sleep(0.002)
        ends = await asyncio.gather(*(collect(stream) for stream in streams.values()))
        assert all(deltas[-1].finish_reason is not None for deltas in ends)
        assert is_all_free(engine)

    run_with_engine(body, max_waiting=100)


def test_step_that_raises_fails_its_requests_and_not_the_loop() -> None:
    async def body(engine: Engine, runner: GatedRunner) -> None:
        runner.error = MemoryError("no room for a chunk")
        (end,) = await collect(engine.add(request("a")))
        assert end.finish_reason is FinishReason.ERROR
        assert end.error.kind == "StepFailed"
        assert "no room for a chunk" in end.error.message
        assert ids(await collect(engine.add(request("b")))) == expected_outputs(PROMPT, 8)
        assert engine.stats().requests_failed == 1
        assert is_all_free(engine)

    run_with_engine(body)


def test_loop_that_dies_ends_every_request_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(engine: Engine, runner: GatedRunner) -> None:
        frames = engine.frames()
        streams = [engine.add(request("a", max_tokens=100)), engine.add(request("b"))]
        await hold(engine, runner)
        runner.model.run = lambda plan: None  # a result the scheduler cannot read
        runner.gate.set()
        for stream in streams:
            end = (await collect(stream))[-1]
            assert end.finish_reason is FinishReason.ERROR
            assert end.error.kind == "EngineUnavailable"
        health = engine.health()
        assert not health.is_ready
        assert "died" in health.detail
        with pytest.raises(EngineUnavailable, match="died"):
            await engine.submit(request("c"))
        await engine.drain()
        assert {d.request_id async for ds in _until_two_ends(frames) for d in ds} == {"a", "b"}

    run_with_engine(body)


async def _until_two_ends(
    frames: AsyncIterator[list[TokenDelta]],
) -> AsyncIterator[list[TokenDelta]]:
    ends = 0
    async for deltas in frames:
        yield deltas
        ends += sum(delta.finish_reason is not None for delta in deltas)
        if ends == 2:
            return


def test_failed_start_raises_what_the_build_raised() -> None:
    def build():
        raise FileNotFoundError("no model here")

    async def main() -> None:
        with pytest.raises(FileNotFoundError, match="no model here"):
            await Engine.run(build, max_waiting=1)
        assert not loop_threads()

    asyncio.run(main())


def test_start_that_is_cancelled_leaves_no_thread() -> None:
    is_building, gate = threading.Event(), threading.Event()

    def build():
        is_building.set()
        gate.wait()
        return counting_core(GatedRunner(page_size=16))

    async def main() -> None:
        starting = asyncio.create_task(Engine.run(build, max_waiting=1))
        await asyncio.to_thread(is_building.wait)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        gate.set()
        await wait_until(lambda: not loop_threads())

    asyncio.run(main())


def test_full_queue_is_refused_with_a_time_to_come_back() -> None:
    async def body(engine: Engine, runner: GatedRunner) -> None:
        runner.gate.clear()
        streams = [engine.add(request(f"r{i}")) for i in range(4 + 2)]
        with pytest.raises(EngineOverloaded, match="6 requests") as refusal:
            await engine.submit(request("more"))
        assert 1.0 <= refusal.value.retry_after_s <= 60.0
        runner.gate.set()
        answers = await asyncio.gather(*(collect(stream) for stream in streams))
        assert all(ids(deltas) == expected_outputs(PROMPT, 8) for deltas in answers)
        assert ids(await collect(engine.add(request("more")))) == expected_outputs(PROMPT, 8)

    run_with_engine(body, max_waiting=2, max_num_seqs=4)


class SteppingClock:
    """A clock that only steps move, each by as much."""

    def __init__(self, runner: GatedRunner, step_s: float) -> None:
        self.now_s, run = 0.0, runner.model.run

        def run_slowly(plan):
            self.now_s += step_s
            return run(plan)

        runner.model.run = run_slowly

    def __call__(self) -> float:
        return self.now_s


@asynccontextmanager
async def stepping_engine(
    runner: GatedRunner, step_s: float, *, max_num_seqs: int = 4, **bounds
) -> AsyncIterator[tuple[Engine, SteppingClock]]:
    clock = SteppingClock(runner, step_s)
    engine = await Engine.run(
        lambda: counting_core(runner, max_num_seqs=max_num_seqs, clock=clock),
        max_waiting=100,
        clock=clock,
        **bounds,
    )
    try:
        yield engine, clock
    finally:
        runner.gate.set()
        await engine.close()


def test_prompts_that_would_wait_too_long_are_refused_until_they_would_not() -> None:
    async def main() -> None:
        runner = GatedRunner(page_size=16)
        async with stepping_engine(runner, 0.5, max_queue_prefill_s=6.0) as (engine, clock):
            await collect(engine.add(request("known", prompt=[1] * 256, max_tokens=1)))
            runner.gate.clear()  # 64 tokens take half a second
            streams = [
                engine.add(request(f"r{i}", prompt=[1] * 448, max_tokens=1)) for i in range(2)
            ]
            with pytest.raises(EngineOverloaded, match=r"need about 7 s.*is 6 s") as refusal:
                await engine.submit(request("more"))
            retry_at_s = clock.now_s + refusal.value.retry_after_s
            assert refusal.value.retry_after_s == 1.0
            runner.gate.set()
            await wait_until(lambda: clock.now_s >= retry_at_s)
            for stream in (*streams, engine.add(request("more"))):
                assert (await collect(stream))[-1].finish_reason is FinishReason.LENGTH

    asyncio.run(main())


def test_progress_of_a_request_is_told_until_it_ends() -> None:
    async def main() -> None:
        runner = GatedRunner(page_size=16)
        async with stepping_engine(runner, 1.0, max_num_seqs=1) as (engine, _):
            runner.gate.clear()
            names = ("first", "second", "third")
            streams = [
                engine.add(request(name, prompt=[1] * 100, max_tokens=200)) for name in names
            ]
            await asyncio.to_thread(runner.is_held.wait, 10.0)
            told = engine.progress("second")
            assert (told.num_computed_tokens, told.num_prompt_tokens) == (0, 100)
            runner.gate.set()
            await wait_until(lambda: [engine.progress(n).position for n in names] == [0, 1, 2])
            for stream in streams:
                await collect(stream)
            assert engine.progress("first") is engine.progress("nobody") is None

    asyncio.run(main())


def test_refused_request_costs_nothing() -> None:
    async def body(engine: Engine, runner: GatedRunner) -> None:
        with pytest.raises(ContextTooLong, match=r"512 tokens.*window of 512"):
            await engine.submit(request("long", prompt=[1] * 512))
        with pytest.raises(InvalidRequest, match="top_p is 0") as refusal:
            await engine.submit(request("bad", top_p=0.0))
        assert refusal.value.param == "top_p"
        assert engine.stats().steps == 0
        assert runner.plans == []
        assert ids(await collect(engine.add(request("long")))) == expected_outputs(PROMPT, 8)

    run_with_engine(body)


def test_request_that_can_never_fit_is_refused() -> None:
    async def body(engine: Engine, runner: GatedRunner) -> None:
        with pytest.raises(RequestTooLarge, match="need 20 pages of 16 tokens, the engine has 4"):
            await engine.submit(request("big", prompt=[1] * 300, max_tokens=8))
        deltas = await collect(engine.add(request("whole", prompt=[1] * 60, max_tokens=None)))
        assert len(ids(deltas)) == 5

    run_with_engine(body, num_pages=4)


def test_id_in_use_is_refused_and_free_again_after_the_end() -> None:
    async def body(engine: Engine, runner: GatedRunner) -> None:
        stream = engine.add(request("a"))
        with pytest.raises(DuplicateRequest, match="a is in use"):
            engine.add(request("a"))
        await collect(stream)
        assert ids(await collect(engine.add(request("a")))) == expected_outputs(PROMPT, 8)

    run_with_engine(body)


def test_drain_finishes_what_was_accepted() -> None:
    async def body(engine: Engine, runner: GatedRunner) -> None:
        streams = [engine.add(request(f"r{i}")) for i in range(8)]
        draining = asyncio.create_task(engine.drain())
        await asyncio.sleep(0)
        with pytest.raises(EngineUnavailable, match="draining"):
            await engine.submit(request("late"))
        assert not engine.health().is_ready
        await draining
        answers = await asyncio.gather(*(collect(stream) for stream in streams))
        assert all(ids(deltas) == expected_outputs(PROMPT, 8) for deltas in answers)

    run_with_engine(body)


def test_drain_aborts_what_outlives_its_grace() -> None:
    async def body(engine: Engine, runner: GatedRunner) -> None:
        runner.gate.clear()
        stream = engine.add(request("a", max_tokens=400))
        await hold(engine, runner)
        draining = asyncio.create_task(engine.drain(grace_s=0.01))
        await asyncio.sleep(0.05)
        runner.gate.set()
        await draining
        assert (await collect(stream))[-1].finish_reason is FinishReason.ABORT

    run_with_engine(body)


def test_close_ends_streams_and_thread() -> None:
    async def main() -> None:
        runner = GatedRunner(page_size=16)
        engine = await Engine.run(lambda: counting_core(runner), max_waiting=4)
        stream, frames = engine.add(request("a", max_tokens=400)), engine.frames()
        await engine.close()
        assert (await collect(stream))[-1].finish_reason is FinishReason.ABORT
        assert [deltas async for deltas in frames][-1][-1].finish_reason is FinishReason.ABORT
        assert not engine.health().is_alive
        with pytest.raises(EngineUnavailable, match="closed"):
            await engine.submit(request("b"))
        assert [deltas async for deltas in engine.frames()] == []
        await engine.close()

    asyncio.run(main())
    assert not loop_threads()
