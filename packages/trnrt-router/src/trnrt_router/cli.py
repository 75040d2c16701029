"""Commands `serve`, `router` and `engine`. Imports nothing heavy until one of them runs."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from trnrt_kernels.serving import ENV_PREFIX, OPTIONS, FiniteRange, config_file_option, options
from trnrt_router.errors import TrnrtRouterError

F = TypeVar("F", bound=Callable[..., Any])

INSTALL_ENGINE = "pip install 'trnrt-router[engine]'"


def _option(flag: str, **settings: Any) -> Callable[[F], F]:
    """Make an option that can also come from `TRNRT_<NAME>`."""
    name = flag.removeprefix("--").replace("-", "_")
    return click.option(flag, name, envvar=ENV_PREFIX + name.upper(), show_envvar=True, **settings)


class _EngineUrl(click.ParamType[str]):
    """An engine's address; one that cannot be connected to would be tried for ever."""

    name = "url"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        url = str(value)
        try:
            parts = urlsplit(url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
            is_address = is_address and parts.port != 0  # raises where it is no number
        except ValueError:
            is_address = False
        if not (is_address or url.startswith("unix:/")):
            self.fail(f"{url!r} is neither http://HOST:PORT nor unix:/PATH.", param, ctx)
        return url


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    def add_all(command: F) -> F:
        for add in reversed(options):
            command = add(command)
        return command

    return add_all


COMMON = _options(
    config_file_option,
    _option("--model", required=True, help="Model folder, or the name of a shipped model (demo)."),
    _option(
        "--log-format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Log lines for people or for collectors.",
    ),
    _option(
        "--log-level",
        type=click.Choice(["DEBUG", "INFO", "WARNING", "ERROR"]),
        default="INFO",
        show_default=True,
        help="Quietest lines that are still logged.",
    ),
    _option(
        "--grace-s",
        type=FiniteRange(min=0),
        default=30.0,
        show_default=True,
        help="Seconds accepted requests may still take after SIGTERM.",
    ),
)
FRONT = _options(
    _option("--served-model-name", help="Name clients ask for  [default: the model's]"),
    _option("--host", default="127.0.0.1", show_default=True, help="Address to listen on."),
    _option(
        "--port",
        type=click.IntRange(0, 65535),
        default=8000,
        show_default=True,
        help="Port to listen on; 0 takes a free one.",
    ),
    _option(
        "--keepalive-s",
        type=FiniteRange(min=0, min_open=True),
        default=15.0,
        show_default=True,
        help="Longest silence on a stream before a comment line.",
    ),
    _option(
        "--max-body-mib",
        type=click.IntRange(min=1),
        default=128,
        show_default=True,
        help="Largest request body.",
    ),
)
ENGINE = options(*OPTIONS)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="trnrt-router")
def commands() -> None:
    """OpenAI-compatible front of the trnrt inference engine."""


@commands.command()
@COMMON
@FRONT
@_option(
    "--engines",
    type=click.IntRange(min=1),
    default=2,
    show_default=True,
    help="Engine processes to run.",
)
@ENGINE
def serve(**settings: Any) -> None:
    """Serve a model: engines and router, started, watched and drained as one."""
    from trnrt_router.launch import launch_serve

    if find_spec("trnrt_engine") is None:
        raise click.ClickException(f"serving needs trnrt-engine: {INSTALL_ENGINE}")
    engine_settings = {name: settings.pop(name) for name in OPTIONS}
    _finish(lambda: launch_serve(engine_settings=engine_settings, **settings))


@commands.command()
@COMMON
@FRONT
@click.option(
    "--engine-url",
    "engine_urls",
    type=_EngineUrl(),
    multiple=True,
    required=True,
    help="An engine's address, http://HOST:PORT or unix:/PATH; once per engine.",
)
def router(**settings: Any) -> None:
    """Run the router alone, in front of engines that were started elsewhere."""
    from trnrt_router.launch import launch_router

    _finish(lambda: launch_router(**settings))


@commands.command()
@COMMON
@_option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@_option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8100,
    show_default=True,
    help="Port to listen on; 0 takes a free one.",
)
@click.option("--unix-socket", type=click.Path(path_type=Path), help="Listen here instead.")
@click.option("--parent-pid", type=int, hidden=True, help="Die with this process.")
@ENGINE
def engine(**settings: Any) -> None:
    """Run one engine alone, for routers to connect to."""
    if find_spec("trnrt_engine") is None:
        raise click.ClickException(f"this command needs trnrt-engine: {INSTALL_ENGINE}")
    from trnrt_router.engine_process import launch_engine

    engine_settings = {name: settings.pop(name) for name in OPTIONS}
    _finish(lambda: launch_engine(engine_settings=engine_settings, **settings))


def _finish(launch: Callable[[], int]) -> None:
    """Run a process to its end and exit with its code; say plainly what stopped it."""
    try:
        code = launch()
    except TrnrtRouterError as error:
        raise click.ClickException(str(error)) from error
    sys.exit(code)


def main() -> None:
    """Run `trnrt-router`; the process ends here."""
    try:
        commands(prog_name="trnrt-router")
    except SystemExit as end:
        if isinstance(end.code, int) and any(thread.daemon for thread in threading.enumerate()):
            # One that is still loading a model is in native code; the interpreter's own end under
            # it would abort the process.
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(end.code)
        raise
