"""Serve a model folder with the `trnrt-router` beside this interpreter, ask once, stop.

A script: run by the interpreter of a clean environment, standard library only. Prints the answer.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

READY_LIMIT_S = 240
ANSWER_LIMIT_S = 240
STOP_LIMIT_S = 30


def main(model: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    router = Path(sys.executable).parent / "trnrt-router"
    command = [router, "serve", "--model", model, "--engines", "1", "--port", port]
    process = subprocess.Popen(command, stdout=sys.stderr)
    try:
        wait_until_ready(process, f"http://127.0.0.1:{port}")
        print(ask(f"http://127.0.0.1:{port}"))
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(STOP_LIMIT_S)
    if code:
        sys.exit(f"serve ended with code {code}")


def wait_until_ready(process: subprocess.Popen[bytes], base: str) -> None:
    deadline = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            sys.exit(f"serve ended early with code {process.returncode}")
        try:
            urllib.request.urlopen(f"{base}/ready", timeout=5).close()
            return
        except OSError:
            time.sleep(0.1)
    sys.exit("not ready in time")


def ask(base: str) -> str:
    (model,) = json.load(urllib.request.urlopen(f"{base}/v1/models", timeout=5))["data"]
    body = {
        "model": model["id"],
        "messages": [{"role": "user", "content": "Who are you?"}],
        "temperature": 0,
        "max_tokens": 20,
    }
    request = urllib.request.Request(
        f"{base}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=ANSWER_LIMIT_S) as response:
        return response.read().decode()


if __name__ == "__main__":
    main(sys.argv[1])
