from __future__ import annotations

import asyncio
import re
import signal
import socket

import httpx
import pytest

from trnrt_router.errors import ConfigError
from trnrt_router.http_server import listen_tcp, listen_unix, serving, signals


async def hello(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def test_port_in_use_is_named():
    with listen_tcp("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)):
            listen_tcp("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "..", "a" * 80])
def test_host_that_does_not_exist_is_named(host):
    with pytest.raises(ConfigError, match=f"cannot listen on {re.escape(host)}:0: "):
        listen_tcp(host, 0)


def test_socket_file_of_a_killed_predecessor_is_replaced(tmp_path):
    path = tmp_path / "e.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    with listen_unix(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    with pytest.raises(ConfigError, match="missing"):
        listen_unix(tmp_path / "missing" / "e.sock")


def test_file_where_the_socket_should_be_is_kept(tmp_path):
    path = tmp_path / "notes"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="notes is no socket"):
        listen_unix(path)
    assert path.read_text() == "mine"


def test_serves_for_the_length_of_the_block():
    async def main():
        with listen_tcp("127.0.0.1", 0) as listener:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            async with httpx.AsyncClient() as client:
                async with serving(hello, listener):
                    inside = (await client.get(url)).text
                with pytest.raises(httpx.TransportError):
                    await client.get(url)
                return inside

    assert asyncio.run(main()) == "hello"


def test_signals_are_the_callers_while_serving():
    async def main():
        seen = []
        with listen_tcp("127.0.0.1", 0) as listener:
            async with serving(hello, listener):
                with signals(seen.append):
                    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                        signal.raise_signal(number)
                    await asyncio.sleep(0.05)
                    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                    async with httpx.AsyncClient() as client:
                        assert (await client.get(url)).status_code == 200
        return seen

    assert asyncio.run(main()) == [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]


def test_closed_terminal_stays_ignored_under_nohup():
    async def main():
        seen = []
        with signals(seen.append):
            signal.raise_signal(signal.SIGHUP)
            await asyncio.sleep(0.05)
        return seen

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert asyncio.run(main()) == []
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
