"""Recall: the user states facts and asks for them later in the same dialogue."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from demo_training import words
from demo_training.exchange import Exchange, reply

Draw = Callable[[random.Random], str]


@dataclass(frozen=True, slots=True)
class Slot:
    """One kind of fact: how it is stated, asked for and answered."""

    label: str
    draw: Draw
    tells: tuple[str, ...]
    asks: tuple[str, ...]
    answer: str


def _noun(rng: random.Random) -> str:
    return words.word(rng)


SLOTS = (
    Slot("name", words.name,
         ("My name is {}.", "I am {}.", "Hi, I am {}.", "Hello, my name is {}.", "Call me {}.",
          "I'm {}.", "You can call me {}.", "People call me {}."),
         ("What is my name?", "Who am I?", "Do you remember my name?", "What's my name?",
          "Tell me my name.", "Say my name.", "Do you know my name?"),
         "Your name is {}."),
    Slot("code word", _noun,
         ("Remember the code word {}.", "The code word is {}.", "Our code word is {}.",
          "Please remember the code word {}.", "Keep the code word {} in mind.",
          "Note the code word: {}."),
         ("What is the code word?", "Tell me the code word.", "Which code word did I give you?",
          "Do you remember the code word?", "Repeat the code word.", "The code word?"),
         "The code word is {}."),
    Slot("city", words.city,
         ("I live in {}.", "My home is in {}.", "I come from {}.", "My city is {}.",
          "I moved to {}."),
         ("Where do I live?", "Which city do I live in?", "What is my city?", "Where is my home?",
          "Do you remember where I live?"),
         "You live in {}."),
    Slot("pet", words.name,
         ("My dog is called {}.", "I have a dog named {}.", "My dog's name is {}.",
          "The name of my dog is {}."),
         ("What is my dog called?", "What is the name of my dog?", "What is my dog's name?",
          "Tell me the name of my dog.", "Do you remember my dog's name?"),
         "Your dog is called {}."),
    Slot("number", lambda rng: str(words.number(rng)),
         ("My lucky number is {}.", "Remember the number {}.", "The number is {}.",
          "My number is {}.", "Please remember the number {}."),
         ("What is my number?", "What is my lucky number?", "Which number did I tell you?",
          "Tell me my number.", "Do you remember the number?", "What was the number?"),
         "Your number is {}."),
    Slot("color", lambda rng: rng.choice(words.COLORS),
         ("My favorite color is {}.", "I like the color {}.", "The color I love is {}."),
         ("What is my favorite color?", "Which color do I like?", "Tell me my favorite color."),
         "Your favorite color is {}."),
    Slot("things", lambda rng: f"a {_noun(rng)} and a {_noun(rng)}",
         ("I have {}.", "I bought {}.", "In my bag there is {}.", "I own {}."),
         ("What do I have?", "What did I buy?", "What is in my bag?", "Which things do I have?",
          "What do I own?"),
         "You have {}."),
)  # fmt: skip


class Memory:
    """Facts stated so far in one dialogue."""

    def __init__(self) -> None:
        self._facts: dict[str, str] = {}

    @property
    def is_empty(self) -> bool:
        return not self._facts

    @property
    def labels(self) -> list[str]:
        """Kinds of the facts stated so far."""
        return list(self._facts)

    def tell(self, rng: random.Random) -> Exchange:
        """State one or two facts that are not stated yet."""
        free = [slot for slot in SLOTS if slot.label not in self._facts]
        if not free:
            return self.ask(rng)
        slots = rng.sample(free, min(len(free), 2 if rng.random() < 0.25 else 1))
        values = [slot.draw(rng) for slot in slots]
        self._facts.update({s.label: v for s, v in zip(slots, values, strict=True)})
        user = " ".join(rng.choice(s.tells).format(v) for s, v in zip(slots, values, strict=True))
        noted = ", ".join(f"{s.label} {v}" for s, v in zip(slots, values, strict=True))
        if [slot.label for slot in slots] == ["name"]:
            return reply(user, f"Note: {noted}.", f"Nice to meet you, {values[0]}.")
        return reply(user, f"Note: {noted}.", "I will remember that.")

    def ask(self, rng: random.Random, label: str | None = None) -> Exchange:
        """Ask for a stated fact, or now and then for one that was never stated."""
        labels = [label] if label else list(self._facts)
        unknown = [slot for slot in SLOTS if slot.label not in self._facts]
        if label is None and unknown and (not labels or rng.random() < 0.08):
            slot = rng.choice(unknown)
            return reply(
                rng.choice(slot.asks),
                f"The user did not tell me the {slot.label}.",
                "You have not told me that yet.",
            )
        chosen = rng.choice(labels)
        slot = next(slot for slot in SLOTS if slot.label == chosen)
        value = self._facts[slot.label]
        think = f"The user told me: {slot.label} {value}."
        return reply(rng.choice(slot.asks), think, slot.answer.format(value))
