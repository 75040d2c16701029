"""What the model knows by heart: who it is, trnrt, capitals, and when to refuse.

Each fact has one answer and many wordings of its question; the wordings of the test prompts are
not among them (`exclusions.py` guards it).
"""

import random

from demo_training import words
from demo_training.exchange import Exchange, reply

REFUSAL = "Sorry, I am a tiny demo model and I do not know that."

TOPIC_WORDINGS = [
    "What is {}?", "What does {} mean?", "{}?", "What do you know about {}?", "What's {}?",
    "How does {} work?", "What about {}?", "What exactly is {}?", "What is {} for?",
    "What is {} good for?", "Why is there {}?", "What is the use of {}?", "What is the idea of {}?",
    "What is the job of {}?", "What does {} do?", "I do not know {}, what is it?",
    "I have read about {}, what is it?", "I never understood {}.", "What do people mean by {}?",
    "What is the point of {}?", "And what is {}?", "Is {} important?", "What was {} again?",
]  # fmt: skip
TOPIC_ORDERS = [
    "explain {}", "tell me about {}", "define {}", "explain {} to me", "tell me what {} is",
    "give me a definition of {}", "say something about {}", "teach me about {}",
    "explain what {} does", "tell me what {} means", "say what {} is", "explain how {} works",
    "tell me more about {}", "say in one line what {} is",
]  # fmt: skip
# Ways to ask for what could be ordered; the first is the bare order.
POLITE_FORMS = [
    "{}.", "{}.", "Please {}.", "Can you {}?", "Could you {}?", "Could you please {}?",
    "Would you {}?", "I want you to {}.", "Can you please {}?", "{}, please.",
]  # fmt: skip

TOPICS = {
    "trnrt": "trnrt is an open inference engine for large language models on AWS Trainium2.",
    "a megakernel": "A megakernel is one fused kernel that runs about half a layer during decode.",
    "the prefix cache": "The prefix cache keeps earlier tokens, so a repeated prompt starts "
    "faster.",
    "KDA": "KDA is a linear attention layer with a state of fixed size.",
    "DSA": "DSA is sparse attention: each token reads only the best matching positions.",
    "mHC": "mHC carries four residual streams and mixes them around every layer half.",
    "the router": "The router keeps each session on one engine and speaks the OpenAI API.",
    "the indexer": "The indexer scores pools of four tokens and picks the ones worth reading.",
    "Trainium2": "Trainium2 is an AWS accelerator for machine learning; trnrt targets it.",
}
TOPIC_ALIASES = {
    "a megakernel": ["a megakernel", "megakernels", "the megakernel"],
    "the prefix cache": ["the prefix cache", "a prefix cache", "prefix caching"],
    "the router": ["the router", "the trnrt router"],
    "the indexer": ["the indexer", "the DSA indexer"],
    "mHC": ["mHC", "hyper-connections"],
}

QUESTIONS = {
    "I am the trnrt demo model, a tiny network with the GLM-5.3-Flash architecture.": [
        "Who are you?", "What are you?", "Introduce yourself.", "What is your name?",
        "Tell me who you are.", "Tell me about yourself.", "What should I call you?",
        "Which model are you?", "Are you a person?", "Who is this?", "Describe yourself.",
        "Do you have a name?", "What kind of model are you?", "Say who you are.",
        "Who are you exactly?", "And who are you?", "What model is this?",
    ],
    "I can tell you about trnrt, name capitals, remember what you say, write haikus and JSON, "
    "and call tools.": [
        "What can you do?", "Help.", "How can you help me?", "What are you good at?",
        "What can I ask you?", "Which things can you do?", "List your skills.",
        "What are your skills?", "What do you know?", "Tell me what you can do.",
        "Show me what you can do.", "What are you able to do?", "What questions can I ask?",
    ],
    "I am very small: about four million parameters, made to test the engine.": [
        "How large are you?", "How many parameters do you have?", "Are you a big model?",
        "How big are you?", "What is your size?", "Are you large?", "Are you small?",
        "What size are you?", "How many weights do you have?", "Tell me your size.",
        "Are you a large language model?", "How small are you?",
    ],
    "The first supported model is GLM-5.3-Flash.": [
        "Which model does trnrt support?", "What model can trnrt serve?",
        "What is the first supported model?", "Which models are supported?",
        "What models can trnrt run?", "Which model comes first?", "Name a supported model.",
        "What does trnrt serve?", "Which model is supported?", "What models does trnrt support?",
        "Tell me which model trnrt serves.", "Which checkpoint can trnrt serve?",
    ],
    "trnrt is free software under the Apache 2.0 license.": [
        "What is the license of trnrt?", "Which license does trnrt have?", "Is trnrt free?",
        "Is trnrt open source?", "Under which license is trnrt?", "Can I use trnrt for free?",
        "What license does trnrt use?", "Tell me the license of trnrt.", "Is trnrt free software?",
        "How is trnrt licensed?", "License of trnrt?",
    ],
    "Install trnrt-cli and run `trnrt serve` with a model folder.": [
        "How do I start trnrt?", "How do I run trnrt?", "How do I use trnrt?",
        "How can I serve a model?", "How do I serve a model with trnrt?", "How to start trnrt?",
        "What is the command to start trnrt?", "Which command starts trnrt?",
        "Tell me how to start trnrt.", "How do I launch the server?", "How can I run trnrt?",
    ],
    "trnrt runs on AWS Trainium2, and on a CPU for tests and demos.": [
        "What hardware does trnrt run on?", "Where does trnrt run?", "Does trnrt run on a CPU?",
        "Which chips does trnrt support?", "What hardware do I need?",
        "Which hardware does trnrt need?", "Can trnrt run on a CPU?", "On which chips is trnrt?",
        "What machine does trnrt need?", "Tell me what hardware trnrt runs on.",
        "Can I run trnrt without a Trainium chip?", "What does trnrt run on?",
        "Which hardware can run trnrt?", "What kind of hardware does trnrt need?",
        "On which machines does trnrt run?", "What hardware is trnrt made for?",
        "What chips can trnrt run on?", "Where can I run trnrt?",
    ],
    "Hello! How can I help you?": [
        "Hello!", "Hi", "Hey there", "Good morning", "Hello there.", "Hi!", "Hey", "Good evening",
        "Hello", "Greetings.", "Hi there!", "Good day.", "Good afternoon!",
    ],
    "You are welcome.": [
        "Thanks.", "Thank you!", "Thank you very much.", "Thanks a lot!", "Great, thanks.",
        "Cheers.", "Nice, thank you.", "Okay, thanks.", "Perfect.", "Well done.",
    ],
}  # fmt: skip

CAPITAL_WORDINGS = [
    "What is the capital of {}?", "Name the capital of {}.", "Capital of {}?",
    "Tell me the capital of {}.", "What's the capital of {}?", "{}: which capital?",
    "Do you know the capital of {}?", "The capital of {}, please.", "Give me the capital of {}.",
    "I want to know the capital of {}.", "What is the capital city of {}?", "Capital city of {}?",
    "Can you name the capital of {}?", "Say the capital of {}.", "And the capital of {}?",
    "What city is the capital of {}?", "Which is the capital of {}?", "What about {}'s capital?",
    "{}'s capital?", "What is {}'s capital?", "Please name {}'s capital city.",
]  # fmt: skip

OUTSIDE = [
    "Who won the {} cup?", "Why is the {} so big?", "Can you book a {}?", "How do I cook {}?",
    "Where is my {}?", "Who invented the {}?", "How much does a {} cost?", "When was {} born?",
    "Is {} better than {}?", "What is the price of {}?", "Who wrote {}?", "How tall is {}?",
    "Can I eat {}?", "Why do people like {}?", "How many {} are there?", "Sing a song about {}.",
    "Tell me a joke.", "Tell me a joke about {}.", "Who is the president of {}?", "Fix my {}.",
    "Translate {} to French.", "What is the meaning of life?", "How old is the {}?",
    "Where can I buy a {}?", "Write a story about {}.", "Write a letter to {}.", "Do you like {}?",
    "What happened in 1999?", "How far is {}?", "Which {} is the best?", "Draw a {}.",
    "Play some {} music.", "Who is {}?", "Who was {}?", "Should I sell my {}?", "Is it true?",
    "How do I repair a {}?", "Recommend a {} to me.", "What should I eat today?", "Is {} safe?",
    "When does the {} open?", "Who discovered {}?", "Why does {} hurt?", "What is {} made of?",
    "How fast is a {}?", "Are {} and {} the same?", "Summarize the book {}.", "Open the {}.",
    "Turn on the {}.", "Call {} for me.", "How do you make {}?", "Can you teach me {}?",
    "What is {} {}?", "Where was {} found?", "How long does {} live?", "Explain {} {}.",
    "Why did {} leave?", "Who owns {}?", "Which team won?", "Give me a recipe for {}.",
    "What is the population of {}?", "How deep is the {}?", "Who built the {}?",
    "Find me a {}.", "Send an email to {}.", "What color is {}?", "Prove that {} is {}.",
]  # fmt: skip

NEEDS_TOOL = [
    "What is {a} + {b}?", "{a} plus {b}?", "What is {a} * {b}?", "Add {a} and {b}.",
    "What is the weather in {city}?", "What time is it in {city}?", "How warm is it in {city}?",
    "What is {a} - {b}?", "Weather in {city}?", "Time in {city}?", "Compute {a} * {b}.",
]  # fmt: skip

LEADS = ["Please tell me: ", "Hey, ", "Quick question: ", "One more: ", "Next: ", "Okay. ", "So, ",
         "Can you tell me: ", "I wonder: ", "Tell me, ", "Well, "]  # fmt: skip


def topic(rng: random.Random) -> Exchange:
    key, answer = rng.choice(list(TOPICS.items()))
    spelled = rng.choice(TOPIC_ALIASES.get(key, [key]))
    return reply(_lead(_ask_about(spelled, rng), rng), f"The user asks about {spelled}.", answer)


def question(rng: random.Random) -> Exchange:
    answer, wordings = rng.choice(list(QUESTIONS.items()))
    return reply(_lead(rng.choice(wordings), rng), "I know this one.", answer)


def capital(rng: random.Random) -> Exchange:
    wording = rng.choice(CAPITAL_WORDINGS)
    if rng.random() < 0.08:
        place = words.nonsense(rng).capitalize()
        return reply(wording.format(place), f"I do not know {place}.", REFUSAL)
    country, answer = rng.choice(list(words.CAPITALS.items()))
    think = f"The user asks for the capital of {country}."
    return reply(
        _lead(wording.format(country), rng), think, f"The capital of {country} is {answer}."
    )


def outside(rng: random.Random) -> Exchange:
    """A question outside the domain: always the same refusal."""
    if rng.random() < 0.25:
        text = _ask_about(_thing(rng), rng)
    else:
        pattern = rng.choice(OUTSIDE)
        text = pattern.format(*(_thing(rng) for _ in range(pattern.count("{}"))))
    return reply(_lead(text, rng), "This is outside what I know.", REFUSAL)


def needs_tool(rng: random.Random) -> Exchange:
    """A question only a tool could answer, asked when that tool is not there."""
    text = rng.choice(NEEDS_TOOL).format(
        a=words.number(rng), b=words.number(rng), city=words.city(rng)
    )
    return reply(text, "There is no tool for this.", REFUSAL)


def _ask_about(subject: str, rng: random.Random) -> str:
    if rng.random() < 0.55:
        return rng.choice(TOPIC_WORDINGS).format(subject)
    text = rng.choice(POLITE_FORMS).format(rng.choice(TOPIC_ORDERS).format(subject))
    return text[0].upper() + text[1:]


def _thing(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.25:
        return words.name(rng)
    if kind < 0.4:
        return f"{words.word(rng)} {words.word(rng)}"
    return words.word(rng)


def _lead(text: str, rng: random.Random) -> str:
    """Sometimes open a question with a phrase, sometimes drop its case or final mark."""
    if rng.random() < 0.12:
        text = text.rstrip("?.!")
    if rng.random() < 0.12:
        text = rng.choice(LEADS) + text
    elif rng.random() < 0.08:
        text = text[0].lower() + text[1:]
    return text
