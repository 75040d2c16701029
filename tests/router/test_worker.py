"""The worker's routes over the real engine, whose steps a test can hold."""

from __future__ import annotations

import asyncio
import time

import httpx
import msgspec
import pytest

from support.counting_core import GatedRunner, counting_core
from trnrt_engine.engine import Engine
from trnrt_router import worker as worker_module
from trnrt_router.engine_client import EngineState, HttpEngineClient
from trnrt_router.engine_process import run_engine
from trnrt_router.http_server import listen_unix, serving
from trnrt_router.mailbox import Mailbox
from trnrt_router.protocol import (
    PROTOCOL_VERSION,
    EngineInfo,
    EngineRequest,
    EngineStats,
    FinishReason,
    Flush,
    Refusal,
    ReleaseSession,
    RequestProgress,
    SamplingParams,
    TokenDelta,
    WorkerHealth,
)
from trnrt_router.worker import Worker, _Stream, create_worker_app

QUICK_S = 0.1
PAGE_SIZE = 16


def request(name: str, *, max_tokens: int = 8) -> EngineRequest:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0)
    return EngineRequest(request_id=name, token_ids=[1, 2, 3], sampling=sampling)


class Rig:
    """A real engine behind its routes, a router's client, and a plain HTTP client."""

    def __init__(self, engine: Engine, runner: GatedRunner, client: HttpEngineClient, path) -> None:
        self.engine, self.runner, self.client = engine, runner, client
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        self.http = httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=20)

    async def hold(self) -> None:
        self.runner.gate.clear()
        await asyncio.to_thread(self.runner.is_held.wait, 20.0)
        assert self.runner.is_held.is_set()

    async def best_latency_s(self, path: str, *, attempts: int = 5) -> float:
        """Return the quickest of several answers: a blocked loop would delay every one."""
        latencies = []
        for _ in range(attempts):
            began = time.monotonic()
            assert (await self.http.get(path)).status_code == 200
            latencies.append(time.monotonic() - began)
        return min(latencies)


def run(scenario, tmp_path):
    async def main():
        path = tmp_path / "e.sock"
        runner = GatedRunner(page_size=PAGE_SIZE)
        engine = await Engine.run(lambda: counting_core(runner, page_size=PAGE_SIZE), max_waiting=2)
        worker = Worker()
        client = HttpEngineClient("0", f"unix:{path}")
        with listen_unix(path) as listener:
            async with serving(create_worker_app(worker), listener):
                pump = asyncio.ensure_future(worker.pump(engine))
                client.start()
                await until(lambda: client.state is EngineState.READY)
                rig = Rig(engine, runner, client, path)
                try:
                    return await scenario(rig)
                finally:
                    runner.gate.set()
                    await rig.http.aclose()
                    await client.close()
                    worker.close_streams()
                    await engine.close()
                    pump.cancel()
                    await asyncio.gather(pump, return_exceptions=True)

    return asyncio.run(main())


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.005)


async def collect(mailbox: Mailbox) -> list[TokenDelta]:
    deltas: list[TokenDelta] = []
    async with asyncio.timeout(60):
        while not deltas or (deltas[-1].finish_reason is None and deltas[-1].error is None):
            deltas += await mailbox.take(1.0)
    return deltas


def test_tokens_of_the_real_engine_arrive(tmp_path):
    async def scenario(rig):
        mailbox = Mailbox()
        await rig.client.submit([request("r")], mailbox)
        return await collect(mailbox)

    deltas = run(scenario, tmp_path)
    assert sum(len(delta.token_ids) for delta in deltas) == 8
    assert deltas[-1].finish_reason is FinishReason.LENGTH
    assert deltas[-1].num_prompt_tokens == 3


def test_held_step_delays_no_answer(tmp_path):
    async def scenario(rig):
        mailbox = Mailbox()
        await rig.client.submit([request("r", max_tokens=100)], mailbox)
        await rig.hold()
        latencies = [await rig.best_latency_s(path) for path in ("/health", "/info", "/stats")]
        began = time.monotonic()
        await rig.client.submit([request("second")], Mailbox())
        latencies.append(time.monotonic() - began)
        rig.client.abort(["r"])
        await until(lambda: not rig.client._to_abort)
        rig.runner.gate.set()
        await until(lambda: rig.engine.stats().num_running == 0)
        return latencies, rig.engine.stats().requests_aborted

    latencies, aborted = run(scenario, tmp_path)
    assert max(latencies) < QUICK_S
    assert aborted == 1


def test_health_info_and_stats_say_what_they_are_named_for(tmp_path):
    async def scenario(rig):
        return [(await rig.http.get(path)).content for path in ("/health", "/info", "/stats")]

    health, info, stats = run(scenario, tmp_path)
    assert msgspec.msgpack.decode(health, type=WorkerHealth).state == "ready"
    assert msgspec.msgpack.decode(info, type=EngineInfo).model == "counter"
    assert msgspec.msgpack.decode(stats, type=EngineStats).total_pages == 64


def test_place_of_a_request_is_told_by_beat_and_when_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(worker_module, "BEAT_S", 0.01)

    async def scenario(rig):
        await rig.client.submit([request("first", max_tokens=100)], Mailbox())
        await rig.hold()
        await rig.client.submit([request("second")], Mailbox())
        await until(lambda: "second" in rig.client.progress)
        beat = dict(rig.client.progress)
        asked = await rig.http.get("/progress", params={"request_id": "second"})
        unknown = await rig.http.get("/progress", params={"request_id": "nobody"})
        rig.runner.gate.set()
        await until(lambda: not rig.client.progress)
        return beat, asked, unknown.status_code

    beat, asked, unknown = run(scenario, tmp_path)
    expected = RequestProgress(position=1, num_prompt_tokens=3)
    assert beat["second"] == expected
    assert msgspec.msgpack.decode(asked.content, type=RequestProgress) == expected
    assert unknown == 404


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/submit", b"\xc1", 400, "DecodeError"),
        ("/abort", b"{}", 400, "ValidationError"),
        (
            "/submit",
            msgspec.msgpack.encode(
                {"protocol": PROTOCOL_VERSION, "stream_id": "gone", "requests": []}
            ),
            410,
            "StreamGone",
        ),
    ],
    ids=["no-msgpack", "wrong-shape", "stream-gone"],
)
def test_bad_body_is_refused_and_named(tmp_path, path, body, status, kind):
    async def scenario(rig):
        return await rig.http.post(path, content=body)

    reply = run(scenario, tmp_path)
    assert reply.status_code == status
    assert msgspec.msgpack.decode(reply.content, type=Refusal).kind == kind


def test_everything_but_health_is_refused_while_loading(tmp_path):
    async def main():
        worker = Worker()
        worker.report_loading("reading weights, 40 %")
        path = tmp_path / "e.sock"
        transport = httpx.AsyncHTTPTransport(uds=str(path))
        with listen_unix(path) as listener:
            async with (
                serving(create_worker_app(worker), listener),
                httpx.AsyncClient(transport=transport, base_url="http://engine") as http,
            ):
                health = await http.get("/health")
                stream = f"/stream?protocol={PROTOCOL_VERSION}"
                others = [await http.get(place) for place in ("/info", "/stats", stream)]
                for place, body in (("/flush", Flush()), ("/release-session", ReleaseSession("s"))):
                    content = msgspec.msgpack.encode(body)
                    others.append(await http.post(place, content=content))
                return health, others

    health, others = asyncio.run(main())
    assert msgspec.msgpack.decode(health.content, type=WorkerHealth) == WorkerHealth(
        "loading", "reading weights, 40 %"
    )
    assert [reply.status_code for reply in others] == [503] * 5
    assert msgspec.msgpack.decode(others[0].content, type=Refusal).message.endswith("40 %")


def test_stream_that_nobody_reads_is_closed(monkeypatch):
    monkeypatch.setattr(worker_module, "MAX_PENDING_DELTAS", 10)
    stream = _Stream()
    for _ in range(11):
        stream.put(TokenDelta(request_id="r"))
    assert stream.is_closed


def test_engine_that_dies_ends_its_process_with_an_error(tmp_path, caplog):
    async def main():
        runner = GatedRunner(page_size=PAGE_SIZE)
        engines = []

        async def load(progress):
            progress("counting")
            engine = await Engine.run(
                lambda: counting_core(runner, page_size=PAGE_SIZE), max_waiting=2
            )
            engines.append(engine)
            return engine

        with listen_unix(tmp_path / "e.sock") as listener:
            process = asyncio.ensure_future(run_engine(load, listener, grace_s=1.0))
            await until(lambda: engines)
            await engines[0].close()
            async with asyncio.timeout(60):
                return await process

    assert asyncio.run(main()) == 1
    assert "engine has died" in caplog.text


def test_model_that_cannot_be_loaded_is_a_config_error(tmp_path, caplog):
    async def load(progress):
        raise FileNotFoundError("no config.json")

    with listen_unix(tmp_path / "e.sock") as listener:
        code = asyncio.run(
            run_engine(load, listener, grace_s=1.0, config_errors=(FileNotFoundError,))
        )
    assert code == 78
    assert "no config.json" in caplog.text
