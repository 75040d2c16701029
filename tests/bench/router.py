"""Router CPU per streamed token: `python tests/bench/router.py` (from the repository's root).

Two scripted engine processes hand out a real text, a token a step, to 24 streams; the router
process detokenises, parses and frames every token for a client of its own connection. Reported
is the router process's CPU time per token, user and system, of the best of several windows: a
machine that does other things besides makes every other one dearer.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))
from results import write_section

from support.demo_folder import DEMO_DIR
from trnrt_router.text.tokenizer import Tokenizer

TEXT = (
    "The engine hands out one token a step; the router turns each into text, splits reasoning "
    "from content and writes one event per token, so that a person sees the answer grow.</think>"
    "Latency is what a reader feels: it should be the model's, never the router's. "
)
ENGINES = 2
RESULTS = Path(__file__).parents[2] / "docs" / "results.md"
WARM_UP_S = 2.0
GOAL_US = 100.0
READY_LIMIT_S = 240.0


@contextlib.contextmanager
def processes(step_s: float, streams: int) -> Iterator[tuple[str, psutil.Process]]:
    """Start engines and router; yield the router's address and process."""
    tokenizer = Tokenizer.from_dir(DEMO_DIR)
    tokens = [f"--token={i}" for i in tokenizer.encode_prompt(TEXT)]
    python = [sys.executable, "-m"]
    running: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stop:
        sockets = [f"{folder}/{number}.sock" for number in range(ENGINES)]
        port = free_port()
        commands = [
            [
                *(*python, "support.scripted_worker", path, *tokens),
                *("--step-s", str(step_s), "--vocab-size", str(tokenizer.vocab_size)),
                *("--max-num-seqs", str(streams)),
            ]
            for path in sockets
        ]
        urls = [part for path in sockets for part in ("--engine-url", f"unix:{path}")]
        commands.append(
            [
                *(*python, "trnrt_router", "router", "--model", str(DEMO_DIR)),
                *("--port", str(port), "--log-level", "WARNING", *urls),
            ]
        )
        for command in commands:
            process = subprocess.Popen(command, cwd=Path(__file__).parents[1])
            running.append(process)
            stop.callback(process.wait)
            stop.callback(process.terminate)
        url = f"http://127.0.0.1:{port}"
        wait_ready(url)
        router = psutil.Process(running[-1].pid)
        set_apart(router, [psutil.Process(process.pid) for process in running[:-1]])
        yield url, router


def set_apart(router: psutil.Process, others: list[psutil.Process]) -> None:
    """Give the router a core of its own where there are two: its time is then its own work."""
    *rest, own = sorted(os.sched_getaffinity(0))
    if rest:
        router.cpu_affinity([own])
        for process in (*others, psutil.Process()):
            process.cpu_affinity(rest)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_ready(url: str) -> None:
    deadline = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(httpx.TransportError):
            ready = httpx.get(f"{url}/ready").json()
            if set(ready["engines"].values()) == {"ready"}:
                return
        time.sleep(0.1)
    raise SystemExit("router or engines were not ready in time")


class Counter:
    """Events that all streams have received so far."""

    def __init__(self) -> None:
        self.events = 0


async def read_stream(url: str, counter: Counter, number: int) -> None:
    """Hold one stream open and count its events, as cheaply as possible."""
    host, port = url.removeprefix("http://").split(":")
    body = json.dumps(
        {
            "messages": [{"role": "user", "content": "Tell me."}],
            "stream": True,
            "ignore_eos": True,
            "session_id": f"bench-{number}",
        }
    ).encode()
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    try:
        while data := await reader.read(65536):
            counter.events += data.count(b"data: ")
    finally:
        writer.close()


@dataclass(frozen=True)
class Window:
    """What one stretch of streaming cost the router."""

    tokens: int
    user_us: float
    system_us: float

    @property
    def total_us(self) -> float:
        return self.user_us + self.system_us


async def measure(
    url: str, router: psutil.Process, *, streams: int, windows: int, seconds: float
) -> list[Window]:
    """Stream without a break and take the router's CPU time window by window."""
    counter = Counter()
    readers = [asyncio.ensure_future(read_stream(url, counter, n)) for n in range(streams)]
    await asyncio.sleep(WARM_UP_S)
    measured = []
    for _ in range(windows):
        cpu, events = router.cpu_times(), counter.events
        await asyncio.sleep(seconds)
        after, tokens = router.cpu_times(), counter.events - events
        measured.append(
            Window(
                tokens,
                (after.user - cpu.user) / tokens * 1e6,
                (after.system - cpu.system) / tokens * 1e6,
            )
        )
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    return measured


def describe(measured: list[Window], *, streams: int, seconds: float) -> str:
    best = min(measured, key=lambda window: window.total_us)
    middle = statistics.median(window.total_us for window in measured)
    verdict = "within" if best.total_us <= GOAL_US else "above"
    return (
        f"{streams} streams, {len(measured)} windows of {seconds:g} s: router CPU per token "
        f"{best.total_us:.1f} us at best ({best.user_us:.1f} user, {best.system_us:.1f} system, "
        f"{best.tokens / seconds:.0f} tokens/s), median {middle:.1f} us; "
        f"{verdict} the goal of {GOAL_US:.0f} us"
    )


def report(measured: list[Window], *, streams: int, seconds: float, step_ms: float) -> str:
    """The section of docs/results.md."""
    best = min(measured, key=lambda window: window.total_us)
    middle = statistics.median(window.total_us for window in measured)
    return "\n".join(
        [
            f"- Machine: {platform.processor() or platform.machine()}, "
            f"{len(os.sched_getaffinity(0))} cores; Python {platform.python_version()}",
            f"- Date: {datetime.date.today().isoformat()}",
            f"- Command: `python tests/bench/router.py`, {len(measured)} windows of {seconds:g} s",
            f"- {streams} streams from {ENGINES} scripted engines, a token every {step_ms:g} ms "
            f"each, {best.tokens / seconds:.0f} tokens/s; detokenised and parsed",
            "",
            "| CPU of the router process per token | required | measured |",
            "| --- | --- | ---: |",
            f"| best window | <= {GOAL_US:.0f} us | {best.total_us:.1f} us "
            f"({best.user_us:.1f} user, {best.system_us:.1f} system) |",
            f"| median window | - | {middle:.1f} us |",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--no-write", action="store_true", help="print only")
    parser.add_argument("--streams", type=int, default=24)
    parser.add_argument("--windows", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a window")
    parser.add_argument("--step-ms", type=float, default=25.0, help="pace of the engines")
    args = parser.parse_args()
    with processes(args.step_ms / 1e3, args.streams) as (url, router):
        measured = asyncio.run(
            measure(url, router, streams=args.streams, windows=args.windows, seconds=args.seconds)
        )
    print(describe(measured, streams=args.streams, seconds=args.seconds))
    if not args.no_write:
        section = report(measured, streams=args.streams, seconds=args.seconds, step_ms=args.step_ms)
        write_section(RESULTS, "Router, a token of a stream", section)


if __name__ == "__main__":
    main()
