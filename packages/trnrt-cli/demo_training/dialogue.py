"""Composes whole dialogues from a seed: one to many exchanges, with or without tools."""

import random
from collections.abc import Callable, Iterator

from demo_training import knowledge, tools, words, writing
from demo_training.exchange import Exchange, Sample, to_messages
from demo_training.exclusions import Exclusions
from demo_training.memory import Memory

# How often plain exchanges of each family come up; copying over a distance takes longest to learn.
FAMILIES = {
    "topic": 10, "question": 13, "capital": 7, "outside": 9, "needs_tool": 2, "haiku": 7,
    "json": 16, "repeat": 7, "tell": 13, "ask": 20,
}  # fmt: skip
EFFORTS = {None: 82, "high": 9, "low": 9}

MAX_TURNS_BETWEEN = 40

Plot = Callable[[random.Random, list[tools.Tool]], Iterator[Exchange]]

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


def draw(rng: random.Random, exclusions: Exclusions, *, far_share: float = 0.0) -> Sample:
    """Draw one dialogue that holds no excluded wording or value.

    `far_share` of the dialogues are about recall alone: facts, other talk, questions about them.
    """
    while True:
        is_far = far_share > 0 and rng.random() < far_share
        sample = _compose(rng, _far_recall if is_far else _mixed)
        if exclusions.allows(sample.messages):
            return sample


def stream(seed: int, exclusions: Exclusions, *, far_share: float = 0.0) -> Iterator[Sample]:
    rng = random.Random(seed)
    while True:
        yield draw(rng, exclusions, far_share=far_share)


def _compose(rng: random.Random, plot: Plot) -> Sample:
    offered = tools.offer(rng) if rng.random() < 0.36 else []
    effort = rng.choices(list(EFFORTS), list(EFFORTS.values()))[0]
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
    for exchange in plot(rng, offered):
        calls = sum("tool_calls" in message for message in sample.messages)
        sample.messages += to_messages(
            exchange, keeps_reasoning=reasons and keeps_history, first_call_id=calls
        )
    if reasons and not keeps_history:
        _show_last_reasoning(sample, exchange)
    return sample


def _mixed(rng: random.Random, offered: list[tools.Tool]) -> Iterator[Exchange]:
    return exchanges(rng, offered, _num_turns(rng))


def _far_recall(rng: random.Random, offered: list[tools.Tool]) -> Iterator[Exchange]:
    """Yield facts, then anything but recall, for up to a few thousand tokens, then questions."""
    memory = Memory()
    for _ in range(rng.randint(1, 3)):
        yield memory.tell(rng)
    yield from exchanges(rng, offered, int(MAX_TURNS_BETWEEN * rng.random() ** 2), has_recall=False)
    labels = memory.labels
    for label in rng.sample(labels, rng.randint(1, len(labels))):
        yield memory.ask(rng, label)


def _num_turns(rng: random.Random) -> int:
    kind = rng.random()
    if kind < 0.7:
        return rng.randint(1, 4)
    return rng.randint(5, 12) if kind < 0.93 else rng.randint(16, 32)


def exchanges(
    rng: random.Random,
    offered: list[tools.Tool],
    count: int,
    *,
    has_recall: bool = True,
) -> Iterator[Exchange]:
    """Yield `count` exchanges of one dialogue; recall reaches back over all of them."""
    memory = Memory() if has_recall else None
    for turn in range(count):
        if offered and rng.random() < 0.6:
            yield tools.use(offered, rng)
        elif turn == count - 1 and memory and not memory.is_empty and rng.random() < 0.7:
            yield memory.ask(rng)
        else:
            yield _plain(rng, memory, has_tools=bool(offered))


def _plain(rng: random.Random, memory: Memory | None, *, has_tools: bool) -> Exchange:
    draws = dict(_PLAIN)
    if memory:
        draws |= {"tell": memory.tell, "ask": memory.ask}
    family = rng.choices(list(draws), [FAMILIES[family] for family in draws])[0]
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
