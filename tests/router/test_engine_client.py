"""Both ends of the wire over a real socket: client, worker routes, a scripted engine behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from support.scripted_engine import INFO, Script, ScriptedEngine
from trnrt_engine.errors import ContextTooLong as EngineContextTooLong
from trnrt_engine.errors import EngineOverloaded, EngineUnavailable
from trnrt_engine.errors import InvalidRequest as EngineInvalidRequest
from trnrt_router import worker as worker_module
from trnrt_router.engine_client import EngineState, HttpEngineClient
from trnrt_router.errors import (
    ConfigError,
    ContextTooLong,
    EngineLost,
    InvalidRequest,
    Overloaded,
    Unavailable,
)
from trnrt_router.http_server import listen_tcp, listen_unix, serving
from trnrt_router.mailbox import Mailbox
from trnrt_router.protocol import (
    PROTOCOL_VERSION,
    EngineRequest,
    FinishReason,
    SamplingParams,
    TokenDelta,
)
from trnrt_router.worker import Worker, create_worker_app

ENDLESS = Script(steps=((5,), (6,)), repeat=True)


def request(name: str, **sampling: object) -> EngineRequest:
    return EngineRequest(request_id=name, token_ids=[1, 2, 3], sampling=SamplingParams(**sampling))


async def until(condition) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.002)


async def collect(mailbox: Mailbox, *, num_ends: int = 1) -> list[TokenDelta]:
    deltas: list[TokenDelta] = []
    async with asyncio.timeout(20):
        while sum(d.finish_reason is not None or d.error is not None for d in deltas) < num_ends:
            deltas += await mailbox.take(1.0)
    return deltas


@contextlib.asynccontextmanager
async def engine_at(path, engine: ScriptedEngine) -> AsyncIterator[Worker]:
    """Serve a scripted engine on a Unix socket."""
    worker = Worker()
    with listen_unix(path) as listener:
        async with serving(create_worker_app(worker), listener):
            pump = asyncio.ensure_future(worker.pump(engine))
            try:
                yield worker
            finally:
                worker.close_streams()
                pump.cancel()
                await asyncio.gather(pump, return_exceptions=True)


@contextlib.asynccontextmanager
async def client_of(path, **settings) -> AsyncIterator[HttpEngineClient]:
    client = HttpEngineClient("0", f"unix:{path}", **settings)
    client.start()
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def connected(path, engine: ScriptedEngine) -> AsyncIterator[HttpEngineClient]:
    async with engine_at(path, engine), client_of(path) as client:
        await until(lambda: client.state is EngineState.READY)
        yield client


@pytest.fixture
def socket_path(tmp_path):
    return tmp_path / "e.sock"


def test_info_and_deltas_arrive(socket_path):
    async def scenario():
        async with connected(socket_path, ScriptedEngine()) as client:
            mailbox = Mailbox()
            await client.submit([request("r")], mailbox)
            assert client.num_in_flight == 1
            deltas = await collect(mailbox)
            assert client.num_in_flight == 0
            return client.info, deltas

    info, deltas = asyncio.run(scenario())
    assert (info.model, info.max_model_len) == (INFO.model, INFO.max_model_len)
    assert [i for delta in deltas for i in delta.token_ids] == [10, 11, 12, 2]
    assert deltas[-1].finish_reason is FinishReason.STOP
    assert deltas[-1].stop_token_id == 2


def test_engine_on_another_host_is_reached_by_url():
    async def scenario():
        worker, mailbox = Worker(), Mailbox()
        with listen_tcp("127.0.0.1", 0) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with serving(create_worker_app(worker), listener):
                pump = asyncio.ensure_future(worker.pump(ScriptedEngine()))
                client = HttpEngineClient("0", url)
                client.start()
                await until(lambda: client.state is EngineState.READY)
                await client.submit([request("r")], mailbox)
                deltas = await collect(mailbox)
                await client.close()
                pump.cancel()
                await asyncio.gather(pump, return_exceptions=True)
        return deltas

    assert asyncio.run(scenario())[-1].finish_reason is FinishReason.STOP


def test_requests_share_one_stream_and_each_gets_its_own_deltas(socket_path):
    async def scenario():
        engine = ScriptedEngine(
            script_for=lambda r: Script(steps=[[100 + int(r.request_id)]] * 3), step_s=0.0
        )
        async with connected(socket_path, engine) as client:
            boxes = [Mailbox() for _ in range(20)]
            await asyncio.gather(
                *(client.submit([request(str(n))], box) for n, box in enumerate(boxes))
            )
            return [await collect(box) for box in boxes]

    for number, deltas in enumerate(asyncio.run(scenario())):
        assert {delta.request_id for delta in deltas} == {str(number)}
        assert [i for delta in deltas for i in delta.token_ids] == [100 + number] * 3


def test_an_id_in_use_is_refused_and_its_request_runs_on(socket_path):
    async def scenario():
        engine = ScriptedEngine(script=ENDLESS)
        async with connected(socket_path, engine) as client, client_of(socket_path) as other:
            await until(lambda: other.state is EngineState.READY)
            mailbox = Mailbox()
            await client.submit([request("same")], mailbox)
            with pytest.raises(InvalidRequest, match="request_id same is in use"):
                await other.submit([request("same")], Mailbox())
            engine.step_gate.clear()
            await mailbox.take(1.0)
            engine.step_gate.set()
            assert await mailbox.take(10.0)
            return list(engine.aborted)

    assert asyncio.run(scenario()) == []


def test_abort_reaches_the_engine_and_a_normal_end_sends_none(socket_path):
    async def scenario():
        engine = ScriptedEngine(script=ENDLESS)
        async with connected(socket_path, engine) as client:
            mailbox = Mailbox()
            await client.submit([request("a"), request("b", max_tokens=3)], mailbox)
            while not await mailbox.take(1.0):
                pass
            client.abort(["a", "never seen"])
            await until(lambda: engine.aborted == ["a"])
            await until(lambda: client.num_in_flight == 0)
        return engine.aborted

    assert asyncio.run(scenario()) == ["a"]


@pytest.mark.parametrize(
    ("refusal", "raised", "details"),
    [
        (
            EngineOverloaded("full", retry_after_s=7.5),
            Overloaded,
            {"retry_after_s": 7.5, "status": 429},
        ),
        (
            EngineContextTooLong("too long", param="token_ids"),
            ContextTooLong,
            {"code": "context_length_exceeded", "param": "token_ids"},
        ),
        (
            EngineInvalidRequest("bad", param="min_p"),
            InvalidRequest,
            {"param": "min_p", "status": 400},
        ),
    ],
    ids=["overloaded", "context", "invalid"],
)
def test_refusal_comes_back_as_the_clients_error(socket_path, refusal, raised, details):
    async def scenario():
        async with connected(socket_path, ScriptedEngine(refusal=refusal)) as client:
            with pytest.raises(raised, match=str(refusal)) as caught:
                await client.submit([request("r")], Mailbox())
            assert client.num_in_flight == 0
            return caught.value

    error = asyncio.run(scenario())
    assert {name: getattr(error, name) for name in details} == details


def test_refusal_of_one_choice_takes_the_others_back(socket_path):
    async def scenario():
        engine = ScriptedEngine(script=ENDLESS)
        accept = engine.submit

        async def refuse_second(spec):
            if spec.request_id == "second":
                raise EngineOverloaded("full", retry_after_s=1.0)
            await accept(spec)

        engine.submit = refuse_second
        async with connected(socket_path, engine) as client:
            with pytest.raises(Overloaded):
                await client.submit([request("first"), request("second")], Mailbox())
            await until(lambda: engine.stats().num_running == 0)
        return engine.aborted

    assert asyncio.run(scenario()) == ["first"]


def test_lost_engine_fails_its_requests_at_once_and_is_found_again(socket_path):
    async def scenario():
        mailbox = Mailbox()
        async with client_of(socket_path) as client:
            async with engine_at(socket_path, ScriptedEngine(script=ENDLESS)):
                await until(lambda: client.state is EngineState.READY)
                await client.submit([request("r")], mailbox)
            deltas = await collect(mailbox)
            assert client.state is EngineState.LOST
            with pytest.raises(EngineLost):
                await client.submit([request("r2")], Mailbox())
            async with engine_at(socket_path, ScriptedEngine()):
                await until(lambda: client.state is EngineState.READY)
                again = Mailbox()
                await client.submit([request("r3")], again)
                return deltas, await collect(again)

    lost, after = asyncio.run(scenario())
    assert lost[-1].error.kind == "EngineLost"
    assert after[-1].finish_reason is FinishReason.STOP


def test_requests_die_with_the_stream_of_their_router(socket_path):
    async def scenario():
        engine = ScriptedEngine(script=ENDLESS)
        async with engine_at(socket_path, engine):
            async with client_of(socket_path) as client:
                await until(lambda: client.state is EngineState.READY)
                await client.submit([request("r")], Mailbox())
            await until(lambda: engine.aborted == ["r"])

    asyncio.run(scenario())


def test_two_routers_do_not_disturb_each_other(socket_path):
    async def scenario():
        engine = ScriptedEngine(script=Script(steps=[[5]] * 40), step_s=0.002)
        async with engine_at(socket_path, engine), client_of(socket_path) as stays:
            async with client_of(socket_path) as leaves:
                for client in (stays, leaves):
                    await until(lambda client=client: client.state is EngineState.READY)
                mailbox = Mailbox()
                await stays.submit([request("stays")], mailbox)
                await leaves.submit([request("leaves")], Mailbox())
            deltas = await collect(mailbox)
            return deltas, engine.aborted

    deltas, aborted = asyncio.run(scenario())
    assert sum(len(delta.token_ids) for delta in deltas) == 40
    assert aborted == ["leaves"]


def test_engine_that_falls_silent_counts_as_lost(socket_path, monkeypatch):
    monkeypatch.setattr(worker_module, "BEAT_S", 60.0)

    async def scenario():
        mailbox = Mailbox()
        async with (
            engine_at(socket_path, ScriptedEngine(script=Script(prefill_s=60.0))),
            client_of(socket_path, silence_s=0.3) as client,
        ):
            await until(lambda: client.state is EngineState.READY)
            await client.submit([request("r")], mailbox)
            return await collect(mailbox)

    assert asyncio.run(scenario())[-1].error.kind == "EngineLost"


def test_beats_keep_a_silent_engine_alive_and_carry_its_load(socket_path, monkeypatch):
    monkeypatch.setattr(worker_module, "BEAT_S", 0.05)

    async def scenario():
        async with (
            engine_at(socket_path, ScriptedEngine(script=Script(prefill_s=0.6))),
            client_of(socket_path, silence_s=0.4) as client,
        ):
            await until(lambda: client.state is EngineState.READY)
            mailbox = Mailbox()
            await client.submit([request("r")], mailbox)
            await until(lambda: client.stats.num_running == 1)
            return await collect(mailbox)

    assert asyncio.run(scenario())[-1].finish_reason is FinishReason.STOP


def test_loading_engine_is_reported_with_what_it_does(socket_path):
    async def scenario():
        worker = Worker()
        worker.report_loading("reading weights, 40 %")
        with listen_unix(socket_path) as listener:
            async with (
                serving(create_worker_app(worker), listener),
                client_of(socket_path) as client,
            ):
                await until(lambda: client.state is EngineState.LOADING)
                return client.detail

    assert "reading weights, 40 %" in asyncio.run(scenario())


def test_other_protocol_version_is_refused_by_name(socket_path, monkeypatch):
    monkeypatch.setattr("trnrt_router.engine_client.PROTOCOL_VERSION", 999)

    async def scenario():
        async with engine_at(socket_path, ScriptedEngine()), client_of(socket_path) as client:
            await until(lambda: client.state is EngineState.LOST)
            return client.detail

    detail = asyncio.run(scenario())
    assert f"protocol {PROTOCOL_VERSION}" in detail
    assert "999" in detail


def test_abort_that_overtook_its_submit_is_sent_again(socket_path):
    async def scenario():
        engine = ScriptedEngine(script=ENDLESS, step_s=0.0)
        async with connected(socket_path, engine) as client:
            await client.submit([request("r")], Mailbox())
            del client._sinks["r"]  # as if its abort had come before the engine knew it
            await until(lambda: engine.aborted == ["r"])

    asyncio.run(scenario())


def test_cache_is_told_over_the_wire(socket_path):
    async def scenario():
        engine = ScriptedEngine()
        async with connected(socket_path, engine) as client:
            await client.flush("tenant")
            await client.flush(None)
            await client.release_session("s")
            engine.refusal = EngineUnavailable("draining")
            with pytest.raises(Unavailable, match="draining"):
                await client.flush(None)
        with pytest.raises(EngineLost):
            await client.flush(None)
        with pytest.raises(EngineLost):
            await client.release_session("s")
        return engine

    engine = asyncio.run(scenario())
    assert engine.flushed == ["tenant", None]
    assert engine.released == ["s"]


def test_address_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match="ftp"):
        HttpEngineClient("0", "ftp://host")


def test_cancelled_submit_leaves_nothing_in_the_engine(socket_path):
    async def scenario():
        engine = ScriptedEngine(script=ENDLESS)
        accept, arrived = engine.submit, asyncio.Event()

        async def slow(spec):
            await accept(spec)
            arrived.set()
            await asyncio.sleep(0.2)

        engine.submit = slow
        async with connected(socket_path, engine) as client:
            submitting = asyncio.ensure_future(client.submit([request("r")], Mailbox()))
            await arrived.wait()
            submitting.cancel()
            await asyncio.gather(submitting, return_exceptions=True)
            await until(lambda: engine.aborted == ["r"])
            assert client.num_in_flight == 0

    asyncio.run(scenario())
