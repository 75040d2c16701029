"""A router process from start to end: listen, wait for engines, serve, drain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import time
from collections.abc import Sequence
from typing import Any

from trnrt_router.app import create_app
from trnrt_router.config import RouterConfig
from trnrt_router.engine_client import EngineClient, EngineState
from trnrt_router.http_server import serving, signals
from trnrt_router.service import Service
from trnrt_router.supervisor import Supervisor, SupervisorGaveUp

logger = logging.getLogger(__name__)

PROGRESS_S = 0.5
LAST_EVENTS_S = 0.2
ENGINE_STOP_S = 5.0


class _Signals:
    """The first signal asks for a drain, the second ends it."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.last: signal.Signals | None = None

    def __call__(self, number: signal.Signals) -> None:
        self.last = number
        (self.second if self.first.is_set() else self.first).set()


async def run_router(
    config: RouterConfig,
    engines: Sequence[EngineClient],
    listener: socket.socket,
    *,
    grace_s: float,
    supervisor: Supervisor | None = None,
) -> int:
    """Serve until a signal; return the exit code.

    `/health` and `/ready` answer from the first moment. A signal turns `/ready` to 503 and lets
    accepted requests finish within `grace_s`; a second one ends them at once.

    Args:
        supervisor: runs the engines' processes beside the router, if they are its own.

    Raises:
        SupervisorGaveUp: the engines cannot be started.
    """
    service = Service.build(config, engines, wait_for_all=supervisor is not None)
    told = _Signals()
    app = create_app(service)
    # What start-up has made lives as long as the process: no full collection needs to walk it,
    # which would stop every stream for as long as that takes.
    gc.collect()
    gc.freeze()
    async with serving(app, listener):
        with signals(told):
            background = [asyncio.ensure_future(_report_progress(service, listener))]
            stop = asyncio.ensure_future(told.first.wait())
            running = asyncio.ensure_future(supervisor.run()) if supervisor else None
            try:
                awaited: list[asyncio.Future[Any]] = [stop] if running is None else [stop, running]
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                if running is not None and running.done():
                    running.result()
                await _drain(service, told, grace_s)
                await service.close()
                await asyncio.sleep(LAST_EVENTS_S)  # error events leave before the sockets close
            finally:
                if supervisor is not None:
                    await supervisor.stop(grace_s=0.0 if told.second.is_set() else ENGINE_STOP_S)
                for task in (*background, stop, *([running] if running else [])):
                    task.cancel()
                    with contextlib.suppress(asyncio.CancelledError, SupervisorGaveUp):
                        await task
    if told.second.is_set() and told.last is not None:
        return 128 + told.last
    return 0


async def _drain(service: Service, told: _Signals, grace_s: float) -> None:
    logger.info("draining grace_s=%.0f", grace_s)
    drain = asyncio.ensure_future(service.drain(grace_s))
    hurry = asyncio.ensure_future(told.second.wait())
    await asyncio.wait((drain, hurry), return_when=asyncio.FIRST_COMPLETED)
    for task in (drain, hurry):
        task.cancel()
    await asyncio.gather(drain, hurry, return_exceptions=True)


async def _report_progress(service: Service, listener: socket.socket) -> None:
    """Log what engines are doing until all are ready, then where clients find us."""
    began = time.monotonic()
    host, port = listener.getsockname()[:2]
    shown: dict[str, tuple[EngineState, str]] = {}
    while not service.pool.is_ready:
        for engine in service.pool.clients:
            now = (engine.state, engine.detail)
            if shown.get(engine.name) != now and engine.state is not EngineState.LOST:
                shown[engine.name] = now
                logger.info("engine %s: %s", engine.name, engine.detail or engine.state)
        await asyncio.sleep(PROGRESS_S)
    logger.info(
        "ready url=http://%s:%d model=%s engines=%d seconds=%.1f",
        f"[{host}]" if ":" in host else host,
        port,
        service.config.served_model_name,
        len(service.pool.clients),
        time.monotonic() - began,
    )
