"""Plays the test prompts against a served model and prints what was right, family by family.

python -m demo_training.evaluate --base-url http://127.0.0.1:8000/v1
"""

import argparse
import json
import random
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from demo_training.checker import Answer, complaint, parse_answer
from demo_training.dialogue import exchanges
from demo_training.exchange import Message, to_messages
from demo_training.exclusions import PROMPTS_PATH

MAX_ANSWER_TOKENS = 160
FILLER_CHARACTERS_A_TOKEN = 3.6

# One assistant message for a dialogue and its tools: greedy.
Complete = Callable[[list[Message], list[Message]], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Outcome:
    prompt_id: str
    family: str
    complaint: str | None
    answer: Answer


def http_client(base_url: str, model: str) -> Complete:
    """Speak the OpenAI API over plain HTTP."""

    def complete(messages: list[Message], tools: list[Message]) -> dict[str, Any]:
        body = {
            "model": model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": MAX_ANSWER_TOKENS,
        }
        if tools:
            body["tools"] = tools
        request = urllib.request.Request(
            f"{base_url}/chat/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as response:
            message: dict[str, Any] = json.load(response)["choices"][0]["message"]
        return message

    return complete


def play(prompt: dict[str, Any], complete: Complete, tools: dict[str, Message]) -> Outcome:
    """Play one prompt's turns; the model's own answers stay in the dialogue, with its reasoning."""
    offered = [tools[name] for name in prompt.get("tools", ())]
    messages: list[Message] = []
    answer = Answer("")
    for index, turn in enumerate(prompt["turns"]):
        if index == len(prompt["turns"]) - 1:
            messages += _filler(prompt)
        if "result" in turn:
            if fault := complaint(turn["call"], answer):
                return Outcome(prompt["id"], prompt["family"], f"before: {fault}", answer)
            messages.append({"role": "tool", "tool_call_id": "call_0", "content": turn["result"]})
        else:
            messages.append({"role": "user", "content": turn["user"]})
        answer = parse_answer(complete(messages, offered))
        messages.append(_as_history(answer))
    return Outcome(prompt["id"], prompt["family"], complaint(prompt["expect"], answer), answer)


def _as_history(answer: Answer) -> Message:
    message: Message = {"role": "assistant", "content": answer.content}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{index}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for index, (name, arguments) in enumerate(answer.calls)
        ]
    return message


def _filler(prompt: dict[str, Any]) -> Iterator[Message]:
    """Other talk from the grammar between a fact and its question, for long recall."""
    wanted = prompt.get("min_tokens_between", 0) * FILLER_CHARACTERS_A_TOKEN
    if not wanted:
        return
    length = 0
    for exchange in exchanges(random.Random(prompt["filler_seed"]), [], 1000, has_recall=False):
        for message in to_messages(exchange, keeps_reasoning=True, first_call_id=0):
            length += len(message["content"]) + len(message.get("reasoning_content", ""))
            yield message
        if length > wanted:
            return


def evaluate(complete: Complete, parts: tuple[str, ...] = ("prompts",)) -> list[Outcome]:
    document = json.loads(PROMPTS_PATH.read_text("utf-8"))
    prompts = [prompt for part in parts for prompt in document[part]]
    return [play(prompt, complete, document["tools"]) for prompt in prompts]


def table(outcomes: list[Outcome]) -> str:
    families = dict.fromkeys(outcome.family for outcome in outcomes)
    rows = ["| family | right | of |", "| --- | ---: | ---: |"]
    for family in families:
        own = [outcome for outcome in outcomes if outcome.family == family]
        rows.append(f"| {family} | {num_right(own)} | {len(own)} |")
    rows.append(f"| **all** | **{num_right(outcomes)}** | **{len(outcomes)}** |")
    return "\n".join(rows)


def num_right(outcomes: list[Outcome]) -> int:
    return sum(outcome.complaint is None for outcome in outcomes)


def report(outcomes: list[Outcome]) -> str:
    """The table, and every wrong answer below it."""
    wrong = [
        f"{outcome.prompt_id}: {outcome.complaint}; {outcome.answer}"
        for outcome in outcomes
        if outcome.complaint
    ]
    return "\n".join([table(outcomes), *wrong])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--floor", type=int, default=36, help="exit 1 below this many of the 40")
    arguments = parser.parse_args()
    complete = http_client(arguments.base_url, arguments.model)
    outcomes = evaluate(complete)
    print(report(outcomes))  # noqa: T201
    print(report(evaluate(complete, ("reported_apart", "long_recall"))))  # noqa: T201
    sys.exit(num_right(outcomes) < arguments.floor)


if __name__ == "__main__":
    main()
