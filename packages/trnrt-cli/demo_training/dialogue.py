"""Composes whole dialogues from a seed: one to many exchanges, with or without tools."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from demo_training import knowledge, tools, words, writing
from demo_training.exchange import Exchange, Sample, to_messages
from demo_training.exclusions import Exclusions
from demo_training.memory import Memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How often things come up: families of plain exchanges; effort unset, high and low."""

    families: dict[str, int]
    efforts: tuple[int, int, int]


BROAD = Mix(
    families={
        "topic": 10, "question": 15, "capital": 9, "outside": 9, "needs_tool": 2, "haiku": 8,
        "json": 13, "repeat": 7, "tell": 12, "ask": 15,
    },
    efforts=(80, 8, 12),
)  # fmt: skip
# Once the facts are known, more of what takes longest to learn: copying over a distance.
COPYING = Mix(
    families={
        "topic": 6, "question": 9, "capital": 5, "outside": 6, "needs_tool": 1, "haiku": 7,
        "json": 21, "repeat": 7, "tell": 15, "ask": 23,
    },
    efforts=(84, 9, 7),
)  # fmt: skip

_PLAIN: dict[str, Callable[[random.Random], Exchange]] = {
    "topic": knowledge.topic,
    "question": knowledge.question,
    "capital": knowledge.capital,
    "outside": knowledge.outside,
    "needs_tool": knowledge.needs_tool,
    "haiku": writing.haiku,
    "json": writing.to_json,
    "repeat": writing.repeat,
}
SYSTEM_PROMPTS = (
    "You are a helpful assistant.", "You are the trnrt demo model.", "Be brief.", "Be polite.",
    "You are a helpful AI assistant.", "Answer the user.", "Answer in English.",
    "You are a demo.", "Keep it short.",
)  # fmt: skip


def draw(rng: random.Random, exclusions: Exclusions, mix: Mix = BROAD) -> Sample:
    """Draw one dialogue that holds no excluded wording or value."""
    while True:
        sample = _compose(rng, mix)
        if exclusions.allows(sample.messages):
            return sample


def stream(seed: int, exclusions: Exclusions, mix: Mix = BROAD) -> Iterator[Sample]:
    rng = random.Random(seed)
    while True:
        yield draw(rng, exclusions, mix)


def _compose(rng: random.Random, mix: Mix) -> Sample:
    offered = tools.offer(rng) if rng.random() < 0.36 else []
    effort = rng.choices([None, "high", "low"], mix.efforts)[0]
    keeps_history = rng.random() < 0.8
    is_verbose = rng.random() < 0.3
    reasons = effort != "low"
    sample = Sample(
        messages=[],
        tools=[tool.to_openai(is_verbose=is_verbose) for tool in offered],
        effort=effort,
        # An answer shown without its reasoning must not be learned where reasoning is due.
        learns_history=keeps_history or not reasons,
    )
    if rng.random() < 0.25:
        text = rng.choice(SYSTEM_PROMPTS)
        if rng.random() < 0.2:
            text = f"Your user is {words.name(rng)}."
        sample.messages.append({"role": "system", "content": text})
    for exchange in exchanges(rng, offered, _num_turns(rng), mix):
        calls = sum("tool_calls" in message for message in sample.messages)
        sample.messages += to_messages(
            exchange, keeps_reasoning=reasons and keeps_history, first_call_id=calls
        )
    if reasons and not keeps_history:
        _show_last_reasoning(sample, exchange)
    return sample


def _num_turns(rng: random.Random) -> int:
    kind = rng.random()
    if kind < 0.7:
        return rng.randint(1, 4)
    return rng.randint(5, 12) if kind < 0.93 else rng.randint(16, 32)


def exchanges(
    rng: random.Random,
    offered: list[tools.Tool],
    count: int,
    mix: Mix = BROAD,
    *,
    has_recall: bool = True,
) -> Iterator[Exchange]:
    """Yield `count` exchanges of one dialogue; recall reaches back over all of them."""
    memory = Memory() if has_recall else None
    for turn in range(count):
        if offered and rng.random() < 0.6:
            yield tools.use(offered, rng)
        elif turn == count - 1 and memory and not memory.is_empty and rng.random() < 0.5:
            yield memory.ask(rng)
        else:
            yield _plain(rng, memory, mix, has_tools=bool(offered))


def _plain(rng: random.Random, memory: Memory | None, mix: Mix, *, has_tools: bool) -> Exchange:
    draws = dict(_PLAIN)
    if memory:
        draws |= {"tell": memory.tell, "ask": memory.ask}
    family = rng.choices(list(draws), [mix.families[family] for family in draws])[0]
    if memory and family == "ask" and memory.is_empty and rng.random() < 0.8:
        family = "tell"
    if family == "needs_tool" and has_tools:
        family = "outside"
    return draws[family](rng)


def _show_last_reasoning(sample: Sample, last: Exchange) -> None:
    """Put the reasoning back into the steps that answer the last user message."""
    answers = [m for m in sample.messages if m["role"] == "assistant"][-len(last.steps) :]
    for message, step in zip(answers, last.steps, strict=True):
        message["reasoning_content"] = step.think
