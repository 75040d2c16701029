from __future__ import annotations

import asyncio

import pytest

from support.scripted_engine import ScriptedEngine, ScriptedEngineClient
from trnrt_engine.errors import EngineOverloaded
from trnrt_router.affinity import Affinity, RouteKey
from trnrt_router.engine_client import EngineState
from trnrt_router.engine_pool import EnginePool
from trnrt_router.errors import EngineLost, Overloaded, Unavailable
from trnrt_router.mailbox import Mailbox
from trnrt_router.protocol import EngineRequest

FULL = EngineOverloaded("full", retry_after_s=1.0)


def run(scenario, *, wait_for_all: bool = False):
    """Run `scenario(pool, clients)` over two scripted engines that are ready."""

    async def main():
        clients = [ScriptedEngineClient(ScriptedEngine(), name) for name in ("a", "b")]
        pool = EnginePool(clients, Affinity(), wait_for_all=wait_for_all)
        pool.start()
        try:
            return await scenario(pool, clients)
        finally:
            await pool.close()

    return asyncio.run(main())


async def submit(pool, number: int = 0, **key) -> str:
    request = EngineRequest(request_id=f"r{number}", token_ids=[1])
    return (await pool.submit([request], Mailbox, key=RouteKey(**key))).name


def test_session_is_bound_only_after_an_engine_accepted():
    async def scenario(pool, clients):
        clients[0].engine.refusal = FULL
        first = await submit(pool, 1, session="s")
        clients[0].engine.refusal = None
        return first, await submit(pool, 2, session="s")

    assert run(scenario) == ("b", "b")


def test_full_home_refuses_and_keeps_its_session():
    async def scenario(pool, clients):
        assert await submit(pool, 1, session="s") == "a"
        clients[0].engine.refusal = FULL
        with pytest.raises(Overloaded):
            await submit(pool, 2, session="s")
        clients[0].engine.refusal = None
        return await submit(pool, 3, session="s")

    assert run(scenario) == "a"


def test_new_session_takes_the_engine_that_has_room():
    async def scenario(pool, clients):
        clients[0].engine.refusal = FULL
        placed = await submit(pool, 1, session="new")
        clients[1].engine.refusal = FULL
        with pytest.raises(Overloaded):
            await submit(pool, 2, session="newer")
        return placed

    assert run(scenario) == "b"


def test_session_of_a_lost_engine_moves_and_does_not_flap_back():
    async def scenario(pool, clients):
        homes = [await submit(pool, 1, session="s")]
        clients[0].kill()
        homes.append(await submit(pool, 2, session="s"))
        clients[0].revive()
        homes.append(await submit(pool, 3, session="s"))
        return homes

    assert run(scenario) == ["a", "b", "b"]


def test_engine_that_is_lost_while_asked_is_passed_over():
    async def scenario(pool, clients):
        async def lost(requests, sink):
            raise EngineLost("connection refused")

        clients[0].submit = lost
        placed = await submit(pool, 1, session="s")
        clients[1].submit = lost
        with pytest.raises(EngineLost):
            await submit(pool, 2)
        return placed

    assert run(scenario) == "b"


def test_every_attempt_has_a_sink_of_its_own():
    async def scenario(pool, clients):
        clients[0].engine.refusal = FULL
        sinks = []

        def open_sink():
            sinks.append(Mailbox())
            return sinks[-1]

        await pool.submit([EngineRequest(request_id="r", token_ids=[1])], open_sink, key=RouteKey())
        return len(sinks)

    assert run(scenario) == 2


def test_not_ready_before_every_engine_was_once_then_one_is_enough():
    async def scenario(pool, clients):
        seen = [pool.is_ready]
        clients[1].set_loading()
        seen.append(pool.is_ready)
        return seen

    async def loading_first(pool, clients):
        pool._awaited.add("b")
        clients[1].set_loading("40 %")
        before = pool.is_ready
        detail = pool.describe()
        clients[1].revive()
        return before, detail, pool.is_ready

    assert run(scenario, wait_for_all=True) == [True, True]
    before, detail, after = run(loading_first, wait_for_all=True)
    assert (before, after) == (False, True)
    assert "engine b" in detail
    assert "40 %" in detail


def test_nothing_known_yet_is_unavailable():
    pool = EnginePool([ScriptedEngineClient(ScriptedEngine())], Affinity())
    assert pool.clients[0].state is EngineState.CONNECTING
    with pytest.raises(Unavailable):
        _ = pool.info
