"""Processor time of the router's text work: `python tests/bench/text.py`.

Prints microseconds per streamed token for detokenizer, output parser and stop matcher together
(one token a push, as a stream has it), and seconds to render and encode long conversations, to
see that they grow in a straight line. Minimum of several runs, process time.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

from trnrt_router.text.chat_template import ChatTemplate
from trnrt_router.text.choice import ChoiceStream
from trnrt_router.text.markup import Section
from trnrt_router.text.tokenizer import Tokenizer

DEMO_DIR = Path(str(files("trnrt_cli.demo_model")))
STOPS = ["\nUser:", "Observation:", "<end>", "###"]
ANSWER = (
    "The tokens of an answer: words, 12.5% digits, a line\nbreak, ein Umlaut ü, 天气 and 👩‍💻.\n"
)


def cpu_seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the least process time of several runs."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def stream(tokenizer: Tokenizer, ids: list[int], stop: list[str]) -> int:
    choice = ChoiceStream(tokenizer, starts_in=Section.REASONING, stop=stop)
    shown = sum(len(choice.push([token_id]).content) for token_id in ids)
    return shown + len(choice.finish("length").content)


def print_streaming(tokenizer: Tokenizer, repeats: int) -> None:
    thought = tokenizer.encode_text(ANSWER * 20)
    close = tokenizer.encode_prompt("</think>")
    ids = [*thought, *close, *tokenizer.encode_text(ANSWER * 400)]
    print(f"{len(ids)} tokens, one a push          us per token")
    for name, stop in (("no stop strings", []), (f"{len(STOPS)} stop strings", STOPS)):
        seconds = cpu_seconds(lambda stop=stop: stream(tokenizer, ids, stop), repeats)
        print(f"  {name:28}{seconds / len(ids) * 1e6:8.2f}")


def print_prompts(tokenizer: Tokenizer, template: ChatTemplate, repeats: int) -> None:
    turn = [{"role": "user", "content": ANSWER}, {"role": "assistant", "content": ANSWER}]
    shapes = {
        "turns": lambda size: turn * (size // (2 * len(ANSWER))),
        "one message": lambda size: [{"role": "user", "content": ANSWER * (size // len(ANSWER))}],
        "spelled controls": lambda size: [
            {"role": "user", "content": "a <|user|> " * (size // 11)}
        ],
    }
    print("prompt                    characters    tokens  render s  encode s")
    for name, messages_of in shapes.items():
        for size in (500_000, 2_000_000):
            messages = messages_of(size)
            prompt = template.render(messages)
            num_tokens = len(tokenizer.encode_prompt(prompt))
            rendering = cpu_seconds(lambda m=messages: template.render(m), repeats)
            encoding = cpu_seconds(lambda p=prompt: tokenizer.encode_prompt(p), repeats)
            print(
                f"  {name:22}{len(prompt.text):12}{num_tokens:10}{rendering:10.2f}{encoding:10.2f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=DEMO_DIR, help="model folder")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    tokenizer = Tokenizer.from_dir(options.model)
    print_streaming(tokenizer, options.repeats)
    print_prompts(tokenizer, ChatTemplate.from_dir(options.model), options.repeats)


if __name__ == "__main__":
    main()
