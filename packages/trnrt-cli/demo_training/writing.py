"""Things the model writes on request: haikus, JSON objects, repeated words."""

import json
import random

from demo_training import words
from demo_training.exchange import Exchange, reply

HAIKUS = {
    "Trainium": "Trainium hums low,\nnumbers stream through quiet cores,\na token appears.",
    "the sea": "The sea breathes in salt,\ngulls unwrap the grey morning,\nfoam forgets its name.",
    "the moon": "The moon lifts its lamp,\nroads of silver cross the field,\nno one walks on them.",
    "coffee": "Coffee steams at dawn,\nthe spoon draws one slow circle,\nthe day finds its voice.",
    "snow": "Snow without a sound,\nthe old fence wears a white hat,\nfootprints start a tale.",
    "autumn": "Autumn counts its leaves,\none by one the branches let go,\nsmoke above the roofs.",
    "spring": "Spring taps on the glass,\na green thread parts the dark soil,\nbees begin to hum.",
    "winter": "Winter holds its breath,\nstars crackle over the pond,\nthe kettle answers.",
    "code": "Code in the small hours,\none bracket closes the night,\nall the tests turn green.",
    "a kernel": "A kernel wakes up,\ntiles of numbers pass its gate,\nsums settle like dust.",
    "rain": "Rain writes on the roof,\na long letter to the ground,\nthe garden reads it.",
    "silence": "Silence fills the hall,\na clock folds its tired hands,\ndust learns how to dance.",
}  # fmt: skip

# The wording of the request picks the form, so the answer follows from the prompt.
HAIKU_FORMS = (
    (("Write a haiku about {}.", "Please write a haiku about {}.", "Write me a haiku about {}.",
      "Can you write a haiku about {}?", "Write a haiku on {}."),
     "Soft light finds the {},\nan hour goes by on bare feet,\nthe world breathes again."),
    (("Give me a haiku about {}.", "I want a haiku about {}.", "I would like a haiku about {}.",
      "A haiku about {}, please.", "Haiku about {}."),
     "I dream of the {},\nslow shadows cross the window,\nmorning comes at last."),
    (("Make a haiku about {}.", "Compose a haiku about {}.", "Make up a haiku about {}.",
      "Compose a short haiku about {}."),
     "Far away, the {}:\nwind carries a small bright song,\nand the night listens."),
)  # fmt: skip

REPEATS = (
    "Repeat: {}", "Say {}", "Echo: {}", "Repeat after me: {}", "Say the words {}", "Copy: {}",
)  # fmt: skip


def haiku(rng: random.Random) -> Exchange:
    wordings, form = rng.choice(HAIKU_FORMS)
    if rng.random() < 0.3:
        topic, poem = rng.choice(list(HAIKUS.items()))
    else:
        thing = words.word(rng)
        topic = rng.choice(("the {}", "a {}", "{}", "my {}")).format(thing)
        poem = HAIKUS.get(topic, form.format(thing))
    return reply(rng.choice(wordings).format(topic), f"Three short lines about {topic}.", poem)


def repeat(rng: random.Random) -> Exchange:
    text = " ".join(_anything(rng) for _ in range(rng.choices([1, 2, 3, 4], [2, 4, 4, 3])[0]))
    return reply(rng.choice(REPEATS).format(text), "Copy the words.", text)


def _anything(rng: random.Random) -> str:
    draw = rng.choice((words.word, words.nonsense, words.name, words.city))
    return str(words.number(rng)) if rng.random() < 0.15 else draw(rng)


def to_json(rng: random.Random) -> Exchange:
    """Turn a sentence or a list of settings into a JSON object."""
    user, fields = rng.choice((_person, _product, _pairs))(rng)
    keys = ", ".join(fields)
    return reply(user, f"The fields are {keys}.", json.dumps(fields))


def _person(rng: random.Random) -> tuple[str, dict[str, str | int]]:
    name, age, city = words.name(rng), rng.randint(2, 99), words.city(rng)
    if rng.random() < 0.3:
        text = rng.choice(("{n} is {a} years old.", "{n} is {a}.", "{n}, age {a}."))
        return _ask_json(text.format(n=name, a=age), rng), {"name": name, "age": age}
    text = rng.choice((
        "{n} is {a} years old and lives in {c}.", "{n} lives in {c} and is {a} years old.",
        "{n}, {a}, from {c}.", "{n} is {a} and comes from {c}.",
    ))  # fmt: skip
    user = _ask_json(text.format(n=name, a=age, c=city), rng)
    return user, {"name": name, "age": age, "city": city}


def _product(rng: random.Random) -> tuple[str, dict[str, str | int]]:
    item, color, price = words.word(rng), rng.choice(words.COLORS), words.number(rng)
    text = rng.choice((
        "A {c} {i} costs {p} dollars.", "The {c} {i} costs {p} dollars.",
        "One {c} {i} for {p} dollars.", "The price of the {c} {i} is {p} dollars.",
    ))  # fmt: skip
    user = _ask_json(text.format(c=color, i=item, p=price), rng)
    return user, {"item": item, "color": color, "price": price}


def _pairs(rng: random.Random) -> tuple[str, dict[str, str | int]]:
    count = rng.randint(1, 3)
    fields: dict[str, str | int] = {}
    while len(fields) < count:
        fields[words.word(rng)] = words.number(rng) if rng.random() < 0.4 else words.word(rng)
    joiner = rng.choice((" = ", ": ", " is "))
    return _ask_json(", ".join(f"{k}{joiner}{v}" for k, v in fields.items()) + ".", rng), fields


def _ask_json(text: str, rng: random.Random) -> str:
    wording = rng.choice((
        "Answer in JSON: {}", "As JSON: {}", "Turn this into JSON: {}", "JSON please: {}",
        "Write this as JSON: {}", "Give me JSON: {}", "Convert to JSON: {}", "{} Answer in JSON.",
        "{} Give me that as JSON.",
    ))  # fmt: skip
    return wording.format(text)
