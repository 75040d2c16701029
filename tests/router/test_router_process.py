"""A router process over supervised engines that play a script: start, drain, end."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import httpx
import pytest

from support.demo_folder import DEMO_DIR
from trnrt_router.config import RouterConfig
from trnrt_router.engine_client import EngineState, HttpEngineClient
from trnrt_router.http_server import listen_tcp
from trnrt_router.router_process import run_router
from trnrt_router.supervisor import EngineCommand, Supervisor

CONFIG = RouterConfig(model_dir=DEMO_DIR, served_model_name="glm", first_byte_wait_s=0.05)
ENDLESS = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "ignore_eos": True}
WAIT_S = 100


class Running:
    """`run_router` as a task, its address, and a client of it."""

    def __init__(self, folder: Path, *, grace_s: float, load_s: float = 0.0) -> None:
        socket = folder / "0.sock"
        client = HttpEngineClient("0", f"unix:{socket}")
        worker = [sys.executable, "-m", "support.scripted_worker", str(socket)]
        argv = [*worker, "--step-s", "0.01", "--load-s", str(load_s)]
        self.supervisor = Supervisor(
            [
                EngineCommand(
                    name="0",
                    argv=argv,
                    environment=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
                )
            ],
            any_ready=lambda: client.state is EngineState.READY,
            is_fatal=lambda code: code == os.EX_CONFIG,
            show_line=lambda name, line: None,
        )
        self.listener = listen_tcp("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.http = httpx.AsyncClient(base_url=self.url, timeout=WAIT_S)
        self.ending = asyncio.ensure_future(
            run_router(CONFIG, [client], self.listener, grace_s=grace_s, supervisor=self.supervisor)
        )

    async def __aenter__(self):
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    await self.http.get("/health")
                    return self
                except httpx.TransportError:
                    await asyncio.sleep(0.01)

    async def __aexit__(self, *_):
        await self.http.aclose()
        self.listener.close()
        if not self.ending.done():
            self.ending.cancel()
            await asyncio.gather(self.ending, return_exceptions=True)

    async def ready(self) -> None:
        async with asyncio.timeout(WAIT_S):
            while (await self.http.get("/ready")).status_code != 200:
                await asyncio.sleep(0.01)

    async def end(self) -> int:
        async with asyncio.timeout(WAIT_S):
            return await self.ending


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


def test_loading_is_503_with_progress_then_ready(tmp_path):
    async def scenario():
        async with Running(tmp_path, grace_s=5, load_s=1.0) as router:
            seen = set()
            async with asyncio.timeout(WAIT_S):
                while (reply := await router.http.get("/ready")).status_code == 503:
                    seen.add(reply.json()["detail"])
                    chat = await router.http.post("/v1/chat/completions", json=ENDLESS)
                    assert chat.status_code in (200, 503)
                    await asyncio.sleep(0.05)
            send(signal.SIGTERM)
            return seen, await router.end()

    seen, code = asyncio.run(scenario())
    assert any("learning the script" in detail for detail in seen)
    assert code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_lets_the_stream_finish_and_refuses_new_requests(tmp_path, number):
    async def scenario():
        async with Running(tmp_path, grace_s=30) as router:
            await router.ready()
            limited = ENDLESS | {"max_tokens": 60}
            async with router.http.stream("POST", "/v1/chat/completions", json=limited) as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                send(number)
                while (await router.http.get("/ready")).status_code == 200:
                    await asyncio.sleep(0.01)
                late = await router.http.post("/v1/chat/completions", json=ENDLESS)
                rest = [line async for line in lines]
            code = await router.end()
            return late, rest, code, router.supervisor.pids

    late, rest, code, pids = asyncio.run(scenario())
    assert late.status_code == 503
    assert rest[-2] == "data: [DONE]"
    assert code == 0
    assert pids == {}


def test_what_outlasts_the_grace_period_ends_with_an_error_event(tmp_path):
    async def scenario():
        async with Running(tmp_path, grace_s=0.3) as router:
            await router.ready()
            async with router.http.stream("POST", "/v1/chat/completions", json=ENDLESS) as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                send(signal.SIGTERM)
                rest = [line async for line in lines if line]
            return rest, await router.end()

    rest, code = asyncio.run(scenario())
    assert '"error"' in rest[-1]
    assert "data: [DONE]" not in rest
    assert code == 0


def test_second_signal_ends_at_once(tmp_path):
    async def scenario():
        async with Running(tmp_path, grace_s=600) as router:
            await router.ready()
            async with router.http.stream("POST", "/v1/chat/completions", json=ENDLESS) as stream:
                lines = stream.aiter_lines()
                await anext(lines)
                send(signal.SIGTERM)
                while (await router.http.get("/ready")).status_code == 200:
                    await asyncio.sleep(0.01)
                send(signal.SIGTERM)
                return [line async for line in lines if line], await router.end()

    rest, code = asyncio.run(scenario())
    assert '"error"' in rest[-1]
    assert code == 128 + signal.SIGTERM
