"""Run an ASGI application under this package's own life-cycle.

uvicorn's own signal handling closes the listening socket first; here a drain must still answer
`/ready` with 503, so signals belong to the caller and the server stops when it is told to.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from litestar.types import ASGIApp

from trnrt_router.errors import ConfigError

# Load generators hold idle connections for minutes; a server that closes first resets them.
KEEP_ALIVE_S = 900
LAST_WORDS_S = 2
BACKLOG = 1024


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen_tcp(host: str, port: int) -> socket.socket:
    """Bind and listen, so that a port in use stops the start before anything is loaded.

    Raises:
        ConfigError: the address cannot be bound.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, UnicodeError) as error:  # no host, or a name that cannot be one
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}") from error


def listen_unix(path: Path) -> socket.socket:
    """Bind and listen on a Unix socket, replacing what a killed predecessor left there.

    Raises:
        ConfigError: the path cannot be bound, or something else than a socket lies there.
    """
    if path.is_socket():
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        reason = f"{path} is no socket" if path.exists() else error.strerror or error
        raise ConfigError(f"cannot listen on {path}: {reason}") from error
    listener.listen(BACKLOG)
    return listener


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, listener: socket.socket) -> AsyncIterator[None]:
    """Serve `app` on a listening socket for the length of the block, then close what is open."""
    config = uvicorn.Config(
        app,
        http="httptools" if importlib.util.find_spec("httptools") else "h11",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LAST_WORDS_S,
        backlog=BACKLOG,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if task.done():
                task.result()
                raise RuntimeError("the HTTP server stopped while starting")
            await asyncio.sleep(0.005)
        yield
    finally:
        server.should_exit = True
        await task


@contextlib.contextmanager
def signals(on_signal: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call `on_signal` in the running loop for SIGTERM, SIGINT and SIGHUP.

    SIGHUP is a terminal that was closed; what `nohup` started goes on without one.
    """
    loop = asyncio.get_running_loop()
    caught = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        caught.append(signal.SIGHUP)
    for number in caught:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run a process's main coroutine on the fastest loop that is installed."""
    factory = None
    if importlib.util.find_spec("uvloop"):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)
