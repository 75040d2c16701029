"""What FP8 pages cost in accuracy, on the demo model: `python tests/bench/fp8_pages.py`.

Greedy answers to generated dialogues, 1,000 tokens in all, with pages in the activation dtype; the
same tokens are forced through a run with FP8 latents. Reported: how often FP8 would have chosen
another token, and the difference of the chosen token's log-probability.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import torch
from results import write_section
from tokenizers import Tokenizer
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.demo_training import import_path

import_path()
from demo_training.dialogue import stream  # noqa: E402
from demo_training.exclusions import Exclusions  # noqa: E402
from demo_training.render import MODEL_DIR, ChatFormat  # noqa: E402

from trnrt_engine.verify_golden import Sequence  # noqa: E402
from trnrt_kernels.models.glm5_next.caches import Caches  # noqa: E402
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig  # noqa: E402
from trnrt_kernels.models.glm5_next.model import Model  # noqa: E402
from trnrt_kernels.models.glm5_next.weights import load_weights  # noqa: E402

NUM_TOKENS = 1000
MAX_ANSWER = 64
SEED = 20_251_130
RESULTS = Path(__file__).parents[2] / "docs" / "results.md"


def prompts() -> Iterator[Tensor]:
    """Dialogues without their last answer, half of them long, as token ids."""
    chat = ChatFormat()
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    for sample in stream(SEED, Exclusions.load(), far_share=0.5):
        messages = list(sample.messages)
        while messages and messages[-1]["role"] != "user":
            messages.pop()
        text = chat.render(
            messages, tools=sample.tools, effort=sample.effort, add_generation_prompt=True
        )
        yield torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids)


def open_sequence(model: Model, max_tokens: int, latent_dtype: torch.dtype | None) -> Sequence:
    sequence = Sequence(model, max_tokens)
    sequence.caches = Caches.allocate(
        model.config,
        sequence.caches.geometry,
        dtype=model.weights.dtype,
        latent_dtype=latent_dtype,
    )
    return sequence


def compare(model: Model) -> tuple[int, Tensor, list[int]]:
    """Return tokens that differ, log-probability differences and prompt lengths."""
    eos = set(model.config.eos_token_ids)
    changed, differences, lengths = 0, [], []
    for prompt in prompts():
        if len(differences) >= NUM_TOKENS:
            break
        lengths.append(len(prompt))
        wide = open_sequence(model, len(prompt) + MAX_ANSWER, None)
        narrow = open_sequence(model, len(prompt) + MAX_ANSWER, torch.float8_e4m3fn)
        logits, other = (s.prefill(prompt).logits[-1] for s in (wide, narrow))
        for _ in range(min(MAX_ANSWER, NUM_TOKENS - len(differences))):
            token = int(logits.argmax())
            changed += int(other.argmax()) != token
            each = (values.log_softmax(-1)[token] for values in (logits, other))
            differences.append(abs(next(each) - next(each)))
            if token in eos:
                break
            logits, other = (s.decode(torch.tensor(token)) for s in (wide, narrow))
    return changed, torch.stack(differences), lengths


def report() -> str:
    config = Glm5NextConfig.from_dir(MODEL_DIR)
    model = Model(config, load_weights(MODEL_DIR, config))
    changed, differences, lengths = compare(model)
    quantiles = differences.quantile(torch.tensor([0.5, 0.99]))
    return "\n".join(
        [
            f"- Machine: {platform.processor() or platform.machine()}, torch {torch.__version__}",
            f"- Date: {date.today().isoformat()}",
            "- Command: `python tests/bench/fp8_pages.py`",
            f"- Demo model, {model.weights.dtype} beside FP8 latents; {len(lengths)} dialogues of "
            f"{min(lengths)} to {max(lengths)} tokens, the same tokens forced into both",
            "",
            "| quantity | value |",
            "| --- | ---: |",
            f"| greedy tokens that FP8 pages change, of {len(differences)} | {changed} |",
            f"| difference of the token's log-probability, mean | {differences.mean():.4f} |",
            f"| median | {quantiles[0]:.5f} |",
            f"| 99 % | {quantiles[1]:.4f} |",
            f"| largest | {differences.max():.4f} |",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--no-write", action="store_true", help="print only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    text = report()
    print(text)
    if not arguments.no_write:
        write_section(RESULTS, "FP8 pages", text)


if __name__ == "__main__":
    main()
