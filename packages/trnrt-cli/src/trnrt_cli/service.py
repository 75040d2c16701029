"""`trnrt serve` as a child process: started, waited for with visible progress, stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from types import TracebackType
from typing import Self

import click

from trnrt_cli.chat_client import ChatClient

HOST = "127.0.0.1"
READY_LIMIT_S = 120.0
STOP_LIMIT_S = 20.0
POLL_S = 0.1


class Service:
    """Runs `trnrt serve ARGS` on a free loopback port for the length of a `with` block.

    Its log is shown until it is ready and kept afterwards for `log`. The block's end stops every
    process it started, whatever happened inside.
    """

    def __init__(self, *args: str) -> None:
        self.args = args
        self.port = find_free_port()
        self.client = ChatClient(HOST, self.port)
        self.log: deque[str] = deque(maxlen=200)
        self._shows_log = True

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "trnrt_cli", "serve", *self.args]
        self._process = subprocess.Popen(
            [*command, "--host", HOST, "--port", str(self.port)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        try:
            self._wait_until_ready()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_LIMIT_S
        while not self.client.is_ready():
            if (code := self._process.poll()) is not None:
                self._reader.join(timeout=1.0)
                raise click.ClickException(f"the service ended with code {code}; its log is above")
            if time.monotonic() > deadline:
                raise click.ClickException(f"the service was not ready after {READY_LIMIT_S:.0f} s")
            time.sleep(POLL_S)
        self._shows_log = False

    def _read_log(self) -> None:
        for line in self._process.stdout or ():
            self.log.append(line)
            if self._shows_log:
                click.secho(f"  {line.rstrip()}", dim=True)

    def _stop(self) -> None:
        """Ask the service to drain; end what is left of its processes when it does not."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(STOP_LIMIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(timeout=1.0)
        if self._process.stdout is not None:
            self._process.stdout.close()


def find_free_port() -> int:
    """Return a loopback port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
