"""Records of kind `files`: a command is run on a model folder that something happened to.

The folder's path stands where the command says `MODEL`, `DIR`, `FOLDER` or `{model}` (also with
`$`); a command that names none gets it as `--model` (serve, engine) or as its last word. `serve`
and `engine` count as started when they answer `/ready` or `/health`; they are stopped after that.
"""

from __future__ import annotations

import http.client
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from case_drivers.outcome import PASSED, Outcome, failed
from support.folder_changes import change_folder
from support.tiny_checkpoint import make_tiny_checkpoint
from trnrt_kernels.models.glm5_next.caches import CacheGeometry, Caches
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.inputs import PrefillInputs
from trnrt_kernels.models.glm5_next.model import Model
from trnrt_kernels.models.glm5_next.weights import load_weights

# `$MODEL`, `${MODEL}`, `{model}` anywhere in a word, or a word that is MODEL
FOLDER_NAMES = "MODEL|DIR|FOLDER|CHECKPOINT|model|dir|folder|checkpoint"
FOLDER_WORDS = re.compile(rf"\$?\{{(?:{FOLDER_NAMES})\}}|\$(?:{FOLDER_NAMES})\b|^[A-Z]{{3,10}}$")
TRNRT = [sys.executable, "-c", "from trnrt_cli.main import main; main()"]
SERVERS = {"serve": "/ready", "engine": "/health"}
LIMIT_S = 90
STOP_LIMIT_S = 30
KNOWN_EXPECTATIONS = {"exit", "stderr_has", "starts", "same_logits_as"}


def _tiny_checkpoint(folder: Path) -> Path:
    return make_tiny_checkpoint(folder, num_shards=2, tokenizer=True)


FIXTURES: dict[str, Callable[[Path], Path]] = {
    "tiny_checkpoint": _tiny_checkpoint,
    "tiny_checkpoint_bf16": lambda folder: make_tiny_checkpoint(folder, fp8=False, tokenizer=True),
}


@dataclass(frozen=True, slots=True)
class Run:
    """What a command came to; `exit_code` is None for a server that was stopped by the driver."""

    has_started: bool
    exit_code: int | None
    stderr: str


def run(record: dict[str, Any]) -> Outcome:
    """Make the folder, change it, run the command, compare."""
    expect = record["expect"]
    if unknown := set(expect) - KNOWN_EXPECTATIONS:
        return failed(f"the driver does not know expect {sorted(unknown)}")
    if record["start_from"] not in FIXTURES:
        return failed(f"unknown fixture {record['start_from']!r}: known: {', '.join(FIXTURES)}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = FIXTURES[record["start_from"]](Path(scratch) / "model")
        change_folder(folder, record["change"])
        if "command" in record:
            fault = _compare(run_command(record["command"], folder), expect)
            if fault:
                return failed(fault)
        if other := expect.get("same_logits_as"):
            return _compare_logits(folder, other, Path(scratch) / "other", record["start_from"])
    return PASSED


def _compare(run: Run, expect: dict[str, Any]) -> str | None:
    said = f"exit {run.exit_code}, started {run.has_started}, stderr: {run.stderr[-2000:]}"
    if "starts" in expect and expect["starts"] is not run.has_started:
        return f"expected starts {expect['starts']}: {said}"
    if "exit" in expect and not _is_exit(run.exit_code, expect["exit"]):
        return f"expected exit {expect['exit']}: {said}"
    wanted = expect.get("stderr_has", [])
    unwrapped = " ".join(run.stderr.split())
    for text in [wanted] if isinstance(wanted, str) else wanted:
        if " ".join(text.split()) not in unwrapped:
            return f"stderr lacks {text!r}: {said}"
    return None


def _is_exit(code: int | None, expected: Any) -> bool:
    if expected in ("nonzero", "non-zero", "not 0", "!=0"):
        return code is not None and code != 0
    if isinstance(expected, list):
        return code in expected
    return code == expected


def command_line(command: str | list[str], folder: Path) -> list[str]:
    """The words behind `trnrt`, the folder put in its place."""
    words = shlex.split(command) if isinstance(command, str) else list(command)
    if words and Path(words[0]).name == "trnrt":
        words = words[1:]
    named = [FOLDER_WORDS.sub(lambda _: str(folder), word) for word in words]
    if named == words and "tiny_checkpoint" in words:
        named = [str(folder) if word == "tiny_checkpoint" else word for word in words]
    if named != words:
        return named
    return [*words, "--model", str(folder)] if words[0] in SERVERS else [*words, str(folder)]


def run_command(command: str | list[str], folder: Path) -> Run:
    """Run a command to its end, a server until it is ready."""
    words = command_line(command, folder)
    if words[0] not in SERVERS:
        done = subprocess.run(
            [*TRNRT, *words], capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        return Run(done.returncode == 0, done.returncode, done.stderr)
    port = _free_port()
    words = [*words, "--port", str(port)] if "--port" not in words else words
    if words[0] == "serve" and "--engines" not in words:
        words += ["--engines", "1"]
    with tempfile.TemporaryFile("w+") as stderr:
        process = subprocess.Popen([*TRNRT, *words], stderr=stderr, env=_one_thread())
        try:
            has_started = _wait_until_ready(process, port, SERVERS[words[0]])
            code = process.poll()
        finally:
            _stop(process)
        stderr.seek(0)
        return Run(has_started, code, stderr.read())


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, path: str) -> bool:
    """Whether a server becomes ready; False as soon as it has ended."""
    deadline = time.monotonic() + LIMIT_S
    while process.poll() is None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"neither ready nor ended within {LIMIT_S} s")
        if _answers(port, path):
            return True
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    return False


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _compare_logits(folder: Path, other: str, scratch: Path, start_from: str) -> Outcome:
    name = start_from if other in ("unchanged", "original", "start_from") else other
    if name not in FIXTURES:
        return failed(f"unknown fixture {other!r} in same_logits_as")
    found, expected = _logits(folder), _logits(FIXTURES[name](scratch))
    if torch.equal(found, expected):
        return PASSED
    difference = (found - expected).abs().max().item()
    return failed(f"logits differ from those of {other} by up to {difference:.3g}")


def _logits(folder: Path) -> torch.Tensor:
    """Float32 logits of a fixed prompt."""
    config = Glm5NextConfig.from_dir(folder)
    model = Model(config, load_weights(folder, config, dtype="float32"))
    geometry = CacheGeometry(num_pages=18, page_size=64, num_state_slots=17, num_scratch=16)
    caches = Caches.allocate(config, geometry, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    inputs = PrefillInputs(
        token_ids_T=torch.randint(config.vocab_size, (128,), generator=generator),
        start=torch.tensor([0]),
        num_tokens=torch.tensor([128]),
        state_slot=torch.tensor([16]),
        block_table_P=torch.tensor([16, 17]),
    )
    return model.prefill_logits(inputs, caches, torch.arange(128))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}
