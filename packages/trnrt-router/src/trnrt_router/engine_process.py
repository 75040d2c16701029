"""An engine process from start to end: serve its routes, load the engine, run, drain.

With `worker.py` the only part of this package that runs where `trnrt_engine` is.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from trnrt_router.http_server import listen_tcp, listen_unix, run, serving, signals
from trnrt_router.logs import LogFormat, configure_logging
from trnrt_router.model_folder import resolve_model
from trnrt_router.parent_tie import die_with_parent
from trnrt_router.worker import ServedEngine, Worker, create_worker_app

logger = logging.getLogger(__name__)

# What an engine cannot be started with will not be better at the next try (sysexits.h).
EXIT_CONFIG = os.EX_CONFIG
HEALTH_CHECK_S = 0.5
LAST_FRAMES_S = 0.2

LoadEngine = Callable[[Callable[[str], None]], Awaitable[ServedEngine]]


def launch_engine(
    *,
    model: str,
    host: str,
    port: int,
    unix_socket: Path | None,
    parent_pid: int | None,
    grace_s: float,
    log_format: str,
    log_level: str,
    engine_settings: Mapping[str, Any],
) -> int:
    """Load a model and serve it until a signal; return the exit code."""
    if parent_pid is not None:
        die_with_parent(parent_pid)
    configure_logging(LogFormat(log_format), level=log_level)
    from trnrt_engine.config import EngineConfig
    from trnrt_engine.engine import Engine
    from trnrt_engine.errors import TrnrtEngineError
    from trnrt_kernels.errors import TrnrtKernelsError

    try:
        config = EngineConfig(model_dir=resolve_model(model), **engine_settings)
    except ValueError as error:
        logger.error("engine cannot be started: %s", error)
        return EXIT_CONFIG
    listener = listen_unix(unix_socket) if unix_socket else listen_tcp(host, port)
    with listener:
        return run(
            run_engine(
                lambda progress: Engine.start(config, progress=progress),
                listener,
                grace_s=grace_s,
                config_errors=(TrnrtEngineError, TrnrtKernelsError, OSError),
            )
        )


async def run_engine(
    load: LoadEngine,
    listener: socket.socket,
    *,
    grace_s: float,
    config_errors: tuple[type[Exception], ...] = (),
) -> int:
    """Serve one engine on a listening socket until a signal; return the exit code.

    The routes answer from the first moment, with 503 while the model is loading.

    Args:
        load: makes the engine; its argument is told what is being done, from any thread.
        config_errors: what `load` raises when the model or a setting cannot be served.
    """
    worker = Worker()
    stop: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()

    def on_signal(number: signal.Signals) -> None:
        if not stop.done():
            stop.set_result(number)

    async with serving(create_worker_app(worker), listener):
        with signals(on_signal):
            loading = asyncio.ensure_future(load(worker.report_loading))
            await asyncio.wait((loading, stop), return_when=asyncio.FIRST_COMPLETED)
            if not loading.done():
                loading.cancel()
                return 0
            try:
                engine = loading.result()
            except config_errors as error:
                logger.error("engine cannot be started: %s", error)
                return EXIT_CONFIG
            return await _run_until_stopped(worker, engine, stop, grace_s=grace_s)


async def _run_until_stopped(
    worker: Worker, engine: ServedEngine, stop: asyncio.Future[signal.Signals], *, grace_s: float
) -> int:
    pump = asyncio.ensure_future(worker.pump(engine))
    death = asyncio.ensure_future(_death_of(engine))
    try:
        await asyncio.wait((pump, death, stop), return_when=asyncio.FIRST_COMPLETED)
        if not stop.done():
            logger.error("engine has died: %s", engine.health().detail or "its frames ended")
            return 1
        worker.drain()
        await engine.drain(grace_s=grace_s)
        await asyncio.sleep(LAST_FRAMES_S)  # the last deltas leave before their stream closes
        return 0
    finally:
        worker.close_streams()
        pump.cancel()
        death.cancel()
        await asyncio.gather(pump, death, return_exceptions=True)
        await engine.close()


async def _death_of(engine: ServedEngine) -> None:
    while engine.health().is_alive:
        await asyncio.sleep(HEALTH_CHECK_S)
