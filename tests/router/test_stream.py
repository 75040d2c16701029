from __future__ import annotations

import asyncio

import pytest

from trnrt_router.errors import EngineLost
from trnrt_router.stream import DONE, EventStream, comment, error_event


def test_framing():
    assert DONE == b"data: [DONE]\n\n"
    assert comment("waiting") == b": waiting\n\n"
    assert error_event(EngineLost("gone")) == (
        b'data: {"error":{"message":"gone","type":"server_error","param":null,'
        b'"code":"engine_lost"}}\n\n'
    )


class Connection:
    """One ASGI request: what was sent, and a client that leaves when told."""

    def __init__(self) -> None:
        self.sent: list[dict[str, object]] = []
        self.gone = asyncio.Event()

    async def receive(self):
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)


def test_events_are_sent_one_by_one_and_the_end_is_told_once():
    async def scenario():
        async def events():
            yield b"a"
            yield b"b"

        ends = []
        connection = Connection()
        response = EventStream(events(), headers={"x-a": "1"}, on_end=lambda: ends.append(1))
        await response({}, connection.receive, connection.send)
        return connection.sent, ends

    sent, ends = asyncio.run(scenario())
    assert sent[0]["status"] == 200
    assert (b"x-a", b"1") in sent[0]["headers"]
    assert [message["body"] for message in sent[1:]] == [b"a", b"b", b""]
    assert [message["more_body"] for message in sent[1:]] == [True, True, False]
    assert ends == [1]


def test_client_that_leaves_cancels_the_events():
    async def scenario():
        cancelled, ends = [], []
        connection = Connection()

        async def events():
            try:
                yield b"a"
                connection.gone.set()
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(1)
                raise

        response = EventStream(events(), headers={}, on_end=lambda: ends.append(1))
        await response({}, connection.receive, connection.send)
        return cancelled, ends

    assert asyncio.run(scenario()) == ([1], [1])


@pytest.mark.parametrize("word", [ConnectionResetError, RuntimeError])
def test_connection_found_closed_is_a_client_that_left(word):
    async def scenario():
        ends = []
        connection = Connection()

        async def refuse(message):
            raise word

        async def events():
            yield b"never"

        response = EventStream(events(), headers={}, on_end=lambda: ends.append(1))
        await response({}, connection.receive, refuse)
        return ends

    assert asyncio.run(scenario()) == [1]
