"""Processes that die and servers that are told to stop, under load."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import psutil
import pytest

from support.served import served

HI = [{"role": "user", "content": "hi"}]
TOKENS = 60


@pytest.fixture(scope="module")
def fragile(checkpoint):
    """A server of this file's own: what happens here, no other test should see."""
    with served(checkpoint, "--grace-s", "60") as running:
        yield running


def test_killed_engine_takes_only_its_own_streams_and_comes_back(fragile):
    client = fragile.client()
    all_started = threading.Barrier(9, timeout=60)

    def stream(number: int) -> tuple[str, int, Exception | None]:
        """Return (engine, tokens that arrived, how it failed)."""
        with client.chat.completions.with_streaming_response.create(
            model="glm",
            messages=HI,
            max_tokens=TOKENS,
            stream=True,
            extra_body={"session_id": f"load-{number}", "ignore_eos": True},
        ) as response:
            home = response.headers["x-trnrt-engine"]
            chunks, error = 0, None
            try:
                for chunk in response.parse():
                    chunks += bool(chunk.choices)
                    if chunks == 1:
                        all_started.wait()
            except openai.APIError as raised:
                error = raised
        return home, chunks, error

    before = fragile.engine_pids()
    with ThreadPoolExecutor(8) as threads:
        running = [threads.submit(stream, number) for number in range(8)]
        all_started.wait()
        os.kill(before["0"], signal.SIGKILL)
        killed_at = time.monotonic()
        # The other engine serves meanwhile, new sessions and those of the dead one.
        for session in ("load-0", "new"):
            reply = client.chat.completions.with_raw_response.create(
                model="glm", messages=HI, max_tokens=2, extra_body={"session_id": session}
            )
            assert reply.headers["x-trnrt-engine"] == "1"
        results = [future.result() for future in running]

    for home, chunks, error in results:
        if home == "0":
            assert error is not None
            assert "engine" in str(error)
        else:
            assert error is None
            assert chunks >= TOKENS // 2
    assert {home for home, _, _ in results} == {"0", "1"}

    fragile.wait_until(
        lambda: fragile.readiness()["engines"] == {"0": "ready", "1": "ready"}, limit_s=90
    )
    print(f"engine back after {time.monotonic() - killed_at:.1f} s")
    after = fragile.engine_pids()
    assert after["0"] != before["0"]
    assert after["1"] == before["1"]
    homes = {
        client.chat.completions.with_raw_response.create(
            model="glm", messages=HI, max_tokens=1, extra_body={"session_id": f"later-{n}"}
        ).headers["x-trnrt-engine"]
        for n in range(4)
    }
    assert "0" in homes


def test_signal_lets_accepted_requests_finish_and_takes_no_new_ones(fragile):
    """The last test of this file: it stops the server."""
    engines = fragile.engine_pids()
    client = fragile.client()
    stream = client.chat.completions.create(
        model="glm",
        messages=HI,
        max_tokens=TOKENS,
        stream=True,
        extra_body={"ignore_eos": True},
        stream_options={"include_usage": True},
    )
    chunks = iter(stream)
    next(chunks)
    fragile.process.send_signal(signal.SIGTERM)
    fragile.wait_until(lambda: httpx.get(f"{fragile.url}/ready").status_code == 503)
    assert httpx.get(f"{fragile.url}/health").status_code == 200
    late = httpx.post(f"{fragile.url}/v1/chat/completions", json={"messages": HI})
    assert late.status_code == 503
    assert late.json()["error"]["message"]
    *_, last = chunks
    assert last.usage.completion_tokens == TOKENS
    assert fragile.process.wait(30) == 0
    assert not any(psutil.pid_exists(pid) for pid in engines.values())


def test_no_engine_outlives_a_server_that_is_killed(checkpoint):
    with served(checkpoint, "--engines", "1") as server:
        [pid] = server.engine_pids().values()
        server.process.kill()
        server.process.wait()
        server.wait_until(lambda: not psutil.pid_exists(pid), limit_s=5)


def test_model_that_cannot_be_served_is_named_and_not_tried_again(checkpoint, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in checkpoint.iterdir():
        if not file.name.startswith("model-00002"):
            (broken / file.name).symlink_to(file)
    with pytest.raises(AssertionError, match="model-00002") as caught, served(broken):
        pass
    assert str(caught.value).count("engine started name=0") == 1
