"""From command-line settings to running processes; imported when a command runs."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trnrt_router.config import MIB, RouterConfig, bound_text_threads, engine_environment
from trnrt_router.http_server import listen_tcp, run
from trnrt_router.logs import LogFormat, configure_logging
from trnrt_router.model_folder import resolve_model
from trnrt_router.socket_dir import private_socket_dir

logger = logging.getLogger(__name__)


def launch_serve(
    *,
    model: str,
    served_model_name: str | None,
    engines: int,
    host: str,
    port: int,
    grace_s: float,
    log_format: str,
    log_level: str,
    keepalive_s: float,
    max_body_mib: int,
    engine_settings: Mapping[str, Any],
) -> int:
    """Run engines and router until a signal; return the exit code."""
    configure_logging(LogFormat(log_format), level=log_level)
    bound_text_threads()
    from trnrt_router.engine_client import EngineState, HttpEngineClient
    from trnrt_router.engine_process import EXIT_CONFIG
    from trnrt_router.router_process import run_router
    from trnrt_router.supervisor import EngineCommand, Supervisor, show_on_stderr

    config = _router_config(model, served_model_name, keepalive_s, max_body_mib)
    listener = listen_tcp(host, port)

    async def serve(socket_dir: Path) -> int:
        paths = {str(number): socket_dir / f"{number}.sock" for number in range(engines)}
        clients = [HttpEngineClient(name, f"unix:{path}") for name, path in paths.items()]
        environment = engine_environment(engines)
        settings = _with_shared_cache(engine_settings, socket_dir)
        common = ["--log-format", log_format, "--log-level", log_level, "--grace-s", str(grace_s)]
        supervisor = Supervisor(
            [
                EngineCommand(
                    name=name,
                    argv=[
                        *(sys.executable, "-m", "trnrt_router", "engine"),
                        *("--model", str(config.model_dir.resolve())),
                        *("--unix-socket", str(path), "--parent-pid", str(os.getpid())),
                        *common,
                        *_flags(settings),
                    ],
                    environment=environment,
                )
                for name, path in paths.items()
            ],
            any_ready=lambda: any(client.state is EngineState.READY for client in clients),
            is_fatal=lambda code: code == EXIT_CONFIG,
            show_line=show_on_stderr,
        )
        return await run_router(config, clients, listener, grace_s=grace_s, supervisor=supervisor)

    with listener, private_socket_dir() as socket_dir:
        return run(serve(socket_dir))


def launch_router(
    *,
    model: str,
    served_model_name: str | None,
    engine_urls: Sequence[str],
    host: str,
    port: int,
    grace_s: float,
    log_format: str,
    log_level: str,
    keepalive_s: float,
    max_body_mib: int,
) -> int:
    """Run a router in front of engines started elsewhere; return the exit code."""
    configure_logging(LogFormat(log_format), level=log_level)
    bound_text_threads()
    from trnrt_router.engine_client import HttpEngineClient
    from trnrt_router.router_process import run_router

    config = _router_config(model, served_model_name, keepalive_s, max_body_mib)

    async def serve() -> int:
        clients = [HttpEngineClient(str(n), url) for n, url in enumerate(engine_urls)]
        return await run_router(config, clients, listener, grace_s=grace_s)

    with listen_tcp(host, port) as listener:
        return run(serve())


def _router_config(
    model: str, served_model_name: str | None, keepalive_s: float, max_body_mib: int
) -> RouterConfig:
    folder = resolve_model(model)
    return RouterConfig(
        model_dir=folder,
        served_model_name=served_model_name or Path(model).resolve().name,
        keepalive_s=keepalive_s,
        max_body_bytes=max_body_mib * MIB,
    )


def _with_shared_cache(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Let the engines share their host memory for prefixes in a folder that goes with them."""
    shared = dict(settings)
    if shared.get("cache_host_gib") and not shared.get("cache_host_dir"):
        shared["cache_host_dir"] = str(folder / "host-cache")
    return shared


def _flags(settings: Mapping[str, Any]) -> list[str]:
    """Write settings as the flags that set them; None is the default and left out."""
    flags: list[str] = []
    for name, value in settings.items():
        if value is not None:
            flags += [f"--{name.replace('_', '-')}", str(value)]
    return flags
