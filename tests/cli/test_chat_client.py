"""The demo's client against a real HTTP server that plays recorded streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from trnrt_cli.chat_client import ChatClient, ChatError, Reply


def events(*chunks: object, done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    return "".join([": waiting\n\n", *lines, "data: [DONE]\n\n" if done else ""]).encode()


def delta(**fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


class Recorded(HTTPServer):
    """Answers every request with `status` and `body`."""

    status = 200
    body = b""
    request: dict[str, object]


class Handler(BaseHTTPRequestHandler):
    server: Recorded

    def do_GET(self) -> None:
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body)

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.server.request = json.loads(self.rfile.read(length))
        self.send_response(self.server.status)
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Recorded]:
    with Recorded(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def client(server: Recorded) -> ChatClient:
    return ChatClient("127.0.0.1", server.server_port, timeout_s=5)


def ask(client: ChatClient) -> tuple[Reply, list[tuple[str, str]]]:
    shown: list[tuple[str, str]] = []
    reply = client.stream_chat({"model": "m"}, lambda kind, text: shown.append((kind, text)))
    return reply, shown


def test_reasoning_content_and_counts_are_read_as_they_stream(
    server: Recorded, client: ChatClient
) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    server.body = events(
        delta(role="assistant", content=""),
        delta(reasoning_content="hm"),
        delta(content="Os"),
        delta(content="lo"),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 5}}},
    )
    reply, shown = ask(client)
    assert shown == [("reasoning", "hm"), ("content", "Os"), ("content", "lo")]
    assert (reply.reasoning, reply.content, reply.finish_reason) == ("hm", "Oslo", "stop")
    assert (reply.prompt_tokens, reply.cached_tokens, reply.output_tokens) == (7, 5, 3)
    assert 0 < reply.first_token_s <= reply.last_token_s
    assert reply.to_message() == {
        "role": "assistant",
        "content": "Oslo",
        "reasoning_content": "hm",
    }
    assert server.request["stream_options"] == {"include_usage": True}


def test_tool_call_is_put_together_from_its_pieces(server: Recorded, client: ChatClient) -> None:
    first = {"index": 0, "id": "call_1", "function": {"name": "get_time", "arguments": ""}}
    rest = {"index": 0, "function": {"arguments": '{"city": "Oslo"}'}}
    server.body = events(delta(tool_calls=[first]), delta(tool_calls=[rest]))
    reply, _ = ask(client)
    function = {"name": "get_time", "arguments": '{"city": "Oslo"}'}
    assert reply.tool_calls == [{"id": "call_1", "type": "function", "function": function}]


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, b'{"error": {"message": "no model"}}', "HTTP 400.*no model"),
        (200, events(delta(content="O"), done=False), "ended without"),
        (200, events({"error": {"message": "engine lost"}}), "engine lost"),
    ],
    ids=["refused", "cut", "error-event"],
)
def test_answer_that_is_not_whole_is_an_error(
    server: Recorded, client: ChatClient, status: int, body: bytes, message: str
) -> None:
    server.status, server.body = status, body
    with pytest.raises(ChatError, match=message):
        ask(client)


def test_ready_only_when_the_service_says_so(server: Recorded, client: ChatClient) -> None:
    assert client.is_ready()
    server.status = 503
    assert not client.is_ready()


def test_model_is_called_what_the_service_calls_it(server: Recorded, client: ChatClient) -> None:
    server.body = b'{"object": "list", "data": [{"id": "demo"}]}'
    assert client.model_name() == "demo"
    server.body = b"not found"
    with pytest.raises(ChatError, match="/v1/models"):
        client.model_name()


def test_service_that_is_not_there_is_not_ready_and_an_error_to_ask() -> None:
    client = ChatClient("127.0.0.1", 1)
    assert not client.is_ready()
    with pytest.raises(ChatError, match="connection to"):
        ask(client)
