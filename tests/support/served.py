"""`trnrt serve` as real processes on a free loopback port."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import openai
import psutil

START_S = 240.0
STOP_S = 60.0


class Served:
    """A running server: its address, its processes, its log."""

    def __init__(self, process: subprocess.Popen[str], model: str) -> None:
        self.process = process
        self.model = model
        self.url = ""
        self.log: deque[str] = deque(maxlen=500)
        self._has_url = threading.Event()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def client(self, **settings: object) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=90, **settings
        )

    def wait_until_ready(self) -> None:
        if not self._has_url.wait(START_S):
            raise AssertionError("not ready in time:\n" + "".join(self.log))
        if not self.url:
            raise AssertionError("ended while starting:\n" + "".join(self.log))

    def engine_pids(self) -> dict[str, int]:
        """Return the process id of every engine by its name."""
        found = {}
        for child in psutil.Process(self.process.pid).children():
            socket = re.search(r"/(\d+)\.sock", " ".join(child.cmdline()))
            if socket:
                found[socket[1]] = child.pid
        return found

    def readiness(self) -> dict[str, object]:
        return httpx.get(f"{self.url}/ready", timeout=10).json()

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric over all labels that are not named."""
        text = httpx.get(f"{self.url}/metrics", timeout=10).text
        pattern = rf"^{name}(?:\{{([^}}]*)\}})? ([0-9.e+-]+)$"
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        return sum(
            float(value)
            for found, value in re.findall(pattern, text, re.MULTILINE)
            if wanted <= set(found.split(","))
        )

    def wait_until(self, condition: Callable[[], bool], *, limit_s: float = 60.0) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, "".join(list(self.log)[-30:])
            time.sleep(0.1)

    def stop(self) -> int:
        """Ask for a drain and return the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)

    def close_log(self) -> None:
        self._reader.join(5)

    def _read_log(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self.log.append(line)
                if found := re.search(r"ready url=(\S+)", line):
                    self.url = found[1]
                    self._has_url.set()
        self._has_url.set()


@contextlib.contextmanager
def served(model_dir: Path, *flags: str, model: str = "glm") -> Iterator[Served]:
    """Run `trnrt serve` for the length of the block and leave no process behind."""
    command = [sys.executable, "-m", "trnrt_router", "serve", "--model", str(model_dir)]
    process = subprocess.Popen(
        [*command, "--served-model-name", model, "--port", "0", *flags],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    server = Served(process, model)
    engines: set[int] = set()
    try:
        server.wait_until_ready()
        engines |= set(server.engine_pids().values())
        yield server
        if process.poll() is None:
            engines |= set(server.engine_pids().values())
    finally:
        if process.poll() is None:
            server.stop()
        server.close_log()
        for pid in engines:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)
                raise AssertionError(f"engine process {pid} was left behind")
