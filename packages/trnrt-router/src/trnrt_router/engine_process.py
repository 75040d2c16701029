"""An engine process from start to end: serve its routes, load the engine, run, drain."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable

from trnrt_router.http_server import serving, signals
from trnrt_router.worker import ServedEngine, Worker, create_worker_app

logger = logging.getLogger(__name__)

# What an engine cannot be started with will not be better at the next try (sysexits.h).
EXIT_CONFIG = os.EX_CONFIG
HEALTH_CHECK_S = 0.5
LAST_FRAMES_S = 0.2

LoadEngine = Callable[[Callable[[str], None]], Awaitable[ServedEngine]]


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
