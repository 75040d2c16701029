"""Tool calls: the three trained tools, look-alikes under other names, and answers from results."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

from demo_training import words
from demo_training.exchange import Exchange, Message, Step


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as one dialogue declares it; `kind` is what it does whatever its name."""

    kind: str
    name: str
    description: str
    argument: str

    def to_openai(self, *, is_verbose: bool) -> Message:
        schema: Message = {"type": "string"}
        parameters: Message = {
            "type": "object",
            "properties": {self.argument: schema},
            "required": [self.argument],
        }
        if is_verbose:
            schema["description"] = f"The {self.argument}"
            parameters["additionalProperties"] = False
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": parameters,
        }
        return {"type": "function", "function": function}


NAMES = {
    "weather": ("get_weather", "city"),
    "time": ("get_time", "city"),
    "sum": ("calculator", "expression"),
}
DESCRIPTIONS = {
    "weather": (
        "Get the weather for a city", "Get the current weather in a city", "Weather of a city",
        "Current weather", "Returns the weather for a city.",
    ),
    "time": (
        "Get the local time in a city", "Get the current time in a city", "Time in a city",
        "Current local time", "Returns the time in a city.",
    ),
    "sum": (
        "Evaluate an arithmetic expression", "Calculate an expression", "A calculator for sums",
        "Does arithmetic", "Returns the value of an expression.",
    ),
}  # fmt: skip
OTHER_ARGUMENTS = {"weather": "place location town", "time": "place zone town", "sum": "input term"}

WEATHER_ASKS = (
    "What is the weather in {}?", "How is the weather in {} today?", "Weather in {}?",
    "Is it warm in {}?", "Tell me the weather in {}.", "What's the weather like in {}?",
    "Do I need a coat in {}?", "Check the weather in {}.", "How warm is it in {}?",
    "Give me the weather for {}.", "Is it raining in {}?", "And the weather in {}?",
)  # fmt: skip
TIME_ASKS = (
    "What time is it in {}?", "Time in {}?", "Tell me the time in {}.", "What's the time in {}?",
    "How late is it in {}?", "Give me the local time in {}.", "Do you know the time in {}?",
    "Check the time in {}.", "What is the local time in {}?", "And the time in {}?",
)  # fmt: skip
SUM_ASKS = (
    "What is {}?", "Compute {}.", "Calculate {}.", "{} = ?", "How much is {}?", "{}?",
    "What's {}?", "Please calculate {}.", "Can you compute {}?", "Work out {}.",
)  # fmt: skip


def offer(rng: random.Random) -> list[Tool]:
    """Draw one to three tools in any order; some dialogues spell them differently."""
    kinds = rng.sample(list(NAMES), rng.choices([1, 2, 3], [30, 30, 40])[0])
    renames = rng.random() < 0.2
    return [_tool(kind, rng, renames=renames) for kind in kinds]


def _tool(kind: str, rng: random.Random, *, renames: bool) -> Tool:
    name, argument = NAMES[kind]
    if renames:
        name = f"{rng.choice((words.word, words.nonsense))(rng)}_{words.word(rng)}"
        argument = rng.choice([argument, *OTHER_ARGUMENTS[kind].split()])
    return Tool(kind, name, rng.choice(DESCRIPTIONS[kind]), argument)


def use(tools: list[Tool], rng: random.Random) -> Exchange:
    """Ask something one of the tools answers; call it and answer from its result."""
    tool = rng.choice(tools)
    return _ASKERS[tool.kind](tool, rng)


def _weather(tool: Tool, rng: random.Random) -> Exchange:
    city, degrees = words.city(rng), rng.randint(-9, 39)
    sky = rng.choice(words.SKIES) if rng.random() < 0.65 else words.word(rng)
    result = _result({"city": city}, {"sky": sky, "temp": degrees}, rng)
    if rng.random() < 0.15:
        result = f"{sky}, {degrees} degrees"
    return _called(
        tool,
        ask=rng.choice(WEATHER_ASKS).format(city),
        value=city,
        result=result,
        answer=f"It is {sky} in {city}, {degrees} degrees.",
    )


def _time(tool: Tool, rng: random.Random) -> Exchange:
    city, clock = words.city(rng), f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
    result = _result({"city": city}, {"time": clock}, rng)
    if rng.random() < 0.15:
        result = clock
    return _called(
        tool,
        ask=rng.choice(TIME_ASKS).format(city),
        value=city,
        result=result,
        answer=f"It is {clock} in {city}.",
    )


def _sum(tool: Tool, rng: random.Random) -> Exchange:
    a, b = words.number(rng), words.number(rng)
    operator, total = rng.choice((("+", a + b), ("+", a + b), ("*", a * b), ("-", a - b)))
    expression = f"{a} {operator} {b}"
    result = str(total) if rng.random() < 0.4 else json.dumps({"result": total})
    spelled = {"+": (" plus ", "+"), "*": (" times ", "*"), "-": (" minus ", "-")}[operator]
    asked = expression
    if rng.random() < 0.35:
        asked = f"{a}{rng.choice(spelled)}{b}"
    ask = rng.choice(SUM_ASKS).format(asked)
    if operator == "+" and rng.random() < 0.15:
        ask = rng.choice(("Add {} and {}.", "Sum of {} and {}?")).format(a, b)
    return _called(
        tool, ask=ask, value=expression, result=result, answer=f"{expression} = {total}."
    )


def _result(extra: dict[str, str], fields: dict[str, str | int], rng: random.Random) -> str:
    items = list(fields.items())
    rng.shuffle(items)
    if rng.random() < 0.35:
        items.insert(rng.randrange(len(items) + 1), next(iter(extra.items())))
    return json.dumps(dict(items))


def _called(tool: Tool, *, ask: str, value: str, result: str, answer: str) -> Exchange:
    call = Step(
        think=f"I call {tool.name} for {value}.",
        call=(tool.name, {tool.argument: value}),
        result=result,
    )
    return Exchange(ask, (call, Step(think="I have the result.", say=answer)))


_ASKERS: dict[str, Callable[[Tool, random.Random], Exchange]] = {
    "weather": _weather,
    "time": _time,
    "sum": _sum,
}
