"""A router on a real loopback socket, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx

from support.demo_folder import DEMO_DIR
from trnrt_router.app import create_app
from trnrt_router.config import RouterConfig
from trnrt_router.engine_client import EngineClient
from trnrt_router.http_server import listen_tcp, serving
from trnrt_router.service import Service

T = TypeVar("T")
WAIT_S = 30.0


class LiveRouter:
    """Handle of a running router; `call` runs a function in its event loop."""

    def __init__(self, url: str, service: Service, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.service = service
        self._loop = loop
        self.http = httpx.Client(base_url=url, timeout=WAIT_S)

    def call(self, function: Callable[..., T], *args: Any) -> T:
        async def run() -> T:
            return function(*args)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(WAIT_S)

    def run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_S)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds, asked in the router's own loop."""

        async def poll() -> None:
            async with asyncio.timeout(WAIT_S):
                while not condition():
                    await asyncio.sleep(0.002)

        self.run(poll())


@contextlib.contextmanager
def live_router(
    engines: Sequence[EngineClient],
    *,
    model_dir: Path = DEMO_DIR,
    model_name: str = "glm",
    **settings: Any,
) -> Iterator[LiveRouter]:
    """Serve the application over `engines` for the length of the block."""
    config = RouterConfig(model_dir=model_dir, served_model_name=model_name, **settings)
    ready = threading.Event()
    handles: list[LiveRouter] = []
    stop: list[asyncio.Event] = []
    failures: list[BaseException] = []

    async def serve() -> None:
        listener = listen_tcp("127.0.0.1", 0)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        service = Service.build(config, engines)
        stop.append(asyncio.Event())
        async with serving(create_app(service), listener):
            handles.append(LiveRouter(url, service, asyncio.get_running_loop()))
            ready.set()
            await stop[0].wait()
            await service.close()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run, name="router")
    thread.start()
    assert ready.wait(WAIT_S)
    try:
        if failures:
            raise failures[0]
        with handles[0].http:
            yield handles[0]
    finally:
        if handles and thread.is_alive():
            handles[0].call(stop[0].set)
        thread.join(WAIT_S)
    assert not thread.is_alive()
    if failures:
        raise failures[0]


def events_of(response: httpx.Response) -> Iterator[str]:
    """Yield the payloads of an event stream, comments as lines that begin with a colon."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield line.removeprefix("data: ")
        elif line:
            yield line
