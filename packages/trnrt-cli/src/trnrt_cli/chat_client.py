"""A small client of the OpenAI chat API: one streamed answer at a time, standard library only."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
OnText = Callable[[str, str], None]
"""Called with "reasoning" or "content" and the text that arrived."""


class ChatError(Exception):
    """The service refused a request, or its stream ended without `[DONE]`."""


@dataclass(slots=True)
class Reply:
    """One answer, filled while it streams; times are seconds since the request was sent."""

    reasoning: str = ""
    content: str = ""
    tool_calls: list[Message] = field(default_factory=list)
    finish_reason: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    first_token_s: float = 0.0
    last_token_s: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first, over the time they took."""
        elapsed_s = self.last_token_s - self.first_token_s
        return (self.output_tokens - 1) / elapsed_s if elapsed_s > 0 else 0.0

    def to_message(self) -> Message:
        """Spell the answer as the assistant message of the next request."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
        return message


class ChatClient:
    """Talks to one service at `host:port`; a connection per request."""

    def __init__(self, host: str, port: int, *, timeout_s: float = 60.0) -> None:
        self.host = host
        self.port = port
        self.timeout_s = timeout_s

    def is_ready(self) -> bool:
        """Ask `/ready`; a service that cannot be reached is not ready."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=2.0)
        try:
            connection.request("GET", "/ready")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def model_name(self) -> str:
        """Ask `/v1/models` for the name of the one model that is served.

        Raises:
            ChatError: the service does not answer as it should.
        """
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout_s)
        try:
            connection.request("GET", "/v1/models")
            name: str = json.load(connection.getresponse())["data"][0]["id"]
            return name
        except (OSError, http.client.HTTPException, ValueError, LookupError) as error:
            raise ChatError(f"/v1/models of {self.host}:{self.port}: {error!r}") from error
        finally:
            connection.close()

    def stream_chat(self, request: Message, on_text: OnText) -> Reply:
        """Send a chat completion, hand on its text as it comes, return the whole answer.

        Raises:
            ChatError: an answer other than 200, an error event, or a stream cut short.
        """
        usage = {"include_usage": True}
        body = json.dumps({**request, "stream": True, "stream_options": usage})
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self.timeout_s)
        started = time.monotonic()
        reply = Reply()
        try:
            connection.request(
                "POST", "/v1/chat/completions", body, {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise ChatError(f"HTTP {response.status}: {response.read().decode()}")
            for chunk in iterate_events(response):
                add_chunk(reply, chunk, on_text, elapsed_s=time.monotonic() - started)
        except (OSError, http.client.HTTPException) as error:
            raise ChatError(f"connection to {self.host}:{self.port} failed: {error}") from error
        finally:
            connection.close()
        return reply


def iterate_events(lines: Iterator[bytes] | http.client.HTTPResponse) -> Iterator[Message]:
    """Yield the JSON of each `data:` line of a stream of server-sent events up to `[DONE]`."""
    for line in lines:
        name, _, value = line.decode().rstrip("\r\n").partition(":")
        if name != "data":
            continue
        if value.strip() == "[DONE]":
            return
        event = json.loads(value)
        if "error" in event:
            raise ChatError(event["error"].get("message", "error event without a message"))
        yield event
    raise ChatError("the stream ended without [DONE]")


def add_chunk(reply: Reply, chunk: Message, on_text: OnText, *, elapsed_s: float) -> None:
    """Add one chunk of a streamed answer to `reply`."""
    if usage := chunk.get("usage"):
        reply.prompt_tokens = usage["prompt_tokens"]
        reply.output_tokens = usage["completion_tokens"]
        reply.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    for choice in chunk.get("choices", ()):
        delta = choice.get("delta", {})
        reply.finish_reason = choice.get("finish_reason") or reply.finish_reason
        reasoning, content = delta.get("reasoning_content") or "", delta.get("content") or ""
        calls = delta.get("tool_calls") or ()
        if not (reasoning or content or calls):
            continue
        reply.first_token_s = reply.first_token_s or elapsed_s
        reply.last_token_s = elapsed_s
        reply.reasoning += reasoning
        reply.content += content
        for call in calls:
            add_tool_call(reply.tool_calls, call)
        if reasoning:
            on_text("reasoning", reasoning)
        if content:
            on_text("content", content)


def add_tool_call(calls: list[Message], delta: Message) -> None:
    """Merge one streamed piece of a tool call into `calls`, by its index."""
    while len(calls) <= delta["index"]:
        calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
    call, function = calls[delta["index"]], delta.get("function", {})
    call["id"] = delta.get("id") or call["id"]
    for part in ("name", "arguments"):
        call["function"][part] += function.get(part) or ""
