"""`trnrt demo`: two engines and a router serve the demo model, and a client talks to them."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType

import click

from trnrt_cli.chat_client import ChatClient, ChatError, Message, Reply
from trnrt_cli.demo_questions import CONVERSATIONS, Conversation, Turn, called_tool
from trnrt_cli.main import find_commands
from trnrt_cli.packages import COMMANDS
from trnrt_cli.service import Service

MAX_TOKENS = 160


@click.command()
@click.option("--model", default="demo", show_default=True, help="Model to serve.")
@click.option("--engines", default=2, show_default=True, help="Number of engines.")
def demo(model: str, engines: int) -> None:
    """Serve the demo model, ask it questions over the OpenAI API, show the streamed answers."""
    if "serve" not in find_commands():
        package, install = COMMANDS["serve"]
        raise click.ClickException(f"the demo needs {package}: {install}")
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _exit_on_signal)
    started = time.monotonic()
    click.echo(f"starting trnrt serve --model {model} --engines {engines}")
    problems: list[str] = []
    with Service("--model", model, "--engines", str(engines)) as service:
        click.echo(f"ready after {time.monotonic() - started:.1f} s on port {service.port}\n")
        name = service.client.model_name()
        for number, conversation in enumerate(CONVERSATIONS):
            problems += hold(conversation, service.client, name, session=f"demo-{number}")
        click.echo("stopping")
    times = os.times()
    cpu_s = times.user + times.system + times.children_user + times.children_system
    turns = sum(len(conversation.turns) for conversation in CONVERSATIONS)
    click.echo(
        f"{turns - len(problems)} of {turns} answers as expected; "
        f"{time.monotonic() - started:.1f} s, {cpu_s:.1f} CPU-seconds over all processes"
    )
    if problems:
        raise click.ClickException("not every answer was as expected: see the lines in red")


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def hold(conversation: Conversation, client: ChatClient, model: str, *, session: str) -> list[str]:
    """Hold one conversation, show it, return what was wrong: at most one line for each turn."""
    click.secho(conversation.title, bold=True)
    messages: list[Message] = []
    problems: list[str] = []
    for number, turn in enumerate(conversation.turns):
        messages.append(next_message(turn, messages))
        click.echo(f"> {messages[-1]['content']}")
        request: Message = {
            "model": model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
            "session_id": session,
        }
        if conversation.tools:
            request["tools"] = conversation.tools
        try:
            reply = client.stream_chat(request, AnswerPrinter())
        except ChatError as error:
            click.secho(f"  no answer: {error}", fg="red")
            return problems + [str(error)] * (len(conversation.turns) - number)
        show_end(reply)
        messages.append(reply.to_message())
        if problem := turn.check(reply):
            click.secho(f"  {problem}", fg="red")
            problems.append(problem)
    click.echo()
    return problems


def next_message(turn: Turn, history: list[Message]) -> Message:
    """Return what is sent for a turn; a tool's result answers the call before it."""
    if not turn.tool_result:
        return {"role": "user", "content": turn.user}
    calls = history[-1].get("tool_calls") or [{"id": "call_0"}]
    return {"role": "tool", "tool_call_id": calls[0]["id"], "content": turn.tool_result}


class AnswerPrinter:
    """Prints an answer as it arrives: reasoning dimmed, then the content on a line of its own."""

    def __init__(self) -> None:
        self.has_reasoning = False

    def __call__(self, kind: str, text: str) -> None:
        if kind == "reasoning":
            self.has_reasoning = True
        elif self.has_reasoning:
            self.has_reasoning = False
            text = f"\n{text.lstrip()}"
        click.secho(text, dim=kind == "reasoning", nl=False)


def show_end(reply: Reply) -> None:
    """Print the tool call, if any, and the counts of the answer."""
    click.echo()
    if call := called_tool(reply):
        name, arguments = call
        listed = ", ".join(f"{key}={value!r}" for key, value in arguments.items())
        click.secho(f"  calls {name}({listed})", fg="magenta")
    click.secho(
        f"  [{reply.prompt_tokens} prompt tokens, {reply.cached_tokens} cached, "
        f"{reply.output_tokens} output, {reply.tokens_per_s:.0f} tokens/s]",
        fg="cyan",
    )
