"""The unit of a dialogue: one user message and the assistant's steps that answer it."""

from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """One assistant message; with a call, the tool's result follows it."""

    think: str
    say: str = ""
    call: tuple[str, dict[str, str]] | None = None
    result: str = ""


@dataclass(frozen=True, slots=True)
class Exchange:
    user: str
    steps: tuple[Step, ...]


@dataclass(slots=True)
class Sample:
    """A dialogue as the API would see it, and which assistant messages are worth learning."""

    messages: list[Message]
    tools: list[Message] = field(default_factory=list)
    effort: str | None = None
    learns_history: bool = True


def reply(user: str, think: str, say: str) -> Exchange:
    return Exchange(user, (Step(think, say),))


def to_messages(exchange: Exchange, *, keeps_reasoning: bool, first_call_id: int) -> list[Message]:
    """Spell an exchange as OpenAI messages (tool arguments as a mapping, as templates want)."""
    messages: list[Message] = [{"role": "user", "content": exchange.user}]
    for offset, step in enumerate(exchange.steps):
        message: Message = {"role": "assistant", "content": step.say}
        if keeps_reasoning and step.think:
            message["reasoning_content"] = step.think
        messages.append(message)
        if step.call is not None:
            call_id = f"call_{first_call_id + offset}"
            function = {"name": step.call[0], "arguments": step.call[1]}
            message["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
            messages.append({"role": "tool", "tool_call_id": call_id, "content": step.result})
    return messages
