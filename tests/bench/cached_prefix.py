"""A second request with a cached prefix of 16k tokens: tokens computed, and CPU time to its token.

    python tests/bench/cached_prefix.py [--toy] [--no-write]

Required: computed are exactly the new tokens and at most 63 more, whatever the prompt's length
modulo 64; the CPU time from intake to the first token at most 0.05 of the cold one. Real steps on
one thread, of a tiny model, which makes the ratio larger than a real one would: what a step costs
beside its tokens weighs more. `--toy` takes the 53M toy of `tests/bench/toy.py`, for minutes.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from results import RESULTS, Goal, conclude, goal_table, provenance
from toy import write_toy

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.tiny_engine import load_tiny_model, tiny_core
from trnrt_engine.api import EngineRequest, SamplingParams
from trnrt_engine.core import EngineCore, Stepper
from trnrt_engine.intake import make_request
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.model import Model
from trnrt_kernels.models.glm5_next.weights import load_weights
from trnrt_kernels.numeric import NumericMode

PREFIX_TOKENS = 16_384
NEW_TOKENS = 40
REMAINDERS = (0, 63)
TITLE = "Cached prefix of 16k tokens"


@dataclass(frozen=True, slots=True)
class FirstToken:
    """What a request took until its first token; `computed` counts prompt tokens."""

    cpu_s: float
    computed: int
    cached: int


class Asker:
    """Sends requests to one engine core and steps it."""

    def __init__(self, model: Model) -> None:
        self._core: EngineCore = tiny_core(
            model,
            max_num_seqs=1,
            max_num_batched_tokens=2048,
            max_model_len=PREFIX_TOKENS + 4096,
            num_bundle_slots=16,
        )
        self._stepper = Stepper(self._core, clock=time.monotonic)
        self._count = 0

    def ask(self, prompt: list[int]) -> FirstToken:
        """Answer a prompt with one token."""
        self._count += 1
        before = self._core.metrics.prompt_tokens
        spec = EngineRequest(
            request_id=f"r{self._count}",
            token_ids=prompt,
            sampling=SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True),
        )
        started_s = time.process_time()
        request = make_request(spec, self._core.limits, arrival_s=time.monotonic())
        self._core.scheduler.add(request)
        deltas = []
        while self._core.scheduler.has_work:
            deltas += self._stepper.step()
        cpu_s = time.process_time() - started_s
        computed = self._core.metrics.prompt_tokens - before
        return FirstToken(cpu_s, computed, deltas[0].num_cached_tokens)


def tokens_of(seed: int, count: int, vocab_size: int) -> list[int]:
    """Random ids."""
    return random.Random(seed).choices(range(1, vocab_size), k=count)


def load_toy(folder: Path) -> Model:
    """Write and load the toy."""
    config = Glm5NextConfig.from_dir(write_toy(folder))
    return Model(config, load_weights(folder, config), numeric_mode=NumericMode.FAST)


def measure(model: Model) -> list[tuple[FirstToken, FirstToken]]:
    """Return what a cold and then a cached request took, for prefixes of several lengths."""
    asker, pairs = Asker(model), []
    for remainder in REMAINDERS:
        size = PREFIX_TOKENS + remainder
        prompt = tokens_of(remainder, size + NEW_TOKENS, model.config.vocab_size)
        pair = asker.ask(prompt[:size]), asker.ask(prompt)
        assert pair[1].computed + pair[1].cached == len(prompt)
        print(f"{size} tokens: cold {pair[0]}, cached {pair[1]}", flush=True)
        pairs.append(pair)
    return pairs


def report(*, is_toy: bool) -> tuple[str, list[Goal]]:
    """Measure all; returns the section and its goals."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        pairs = measure(load_toy(path) if is_toy else load_tiny_model(path, window=32_768))
    excess = [cached.computed - NEW_TOKENS for _, cached in pairs]
    cold_s = min(cold.cpu_s for cold, _ in pairs)
    cached_s = min(cached.cpu_s for _, cached in pairs)
    goals = [
        Goal("tokens computed beyond the new ones, most", 63, max(excess), "{:.0f}", most=63),
        Goal(
            "cached / cold CPU time to the first token",
            0.02,
            cached_s / cold_s,
            "{:.4f}",
            most=0.05,
        ),
    ]
    name = "the 53M toy" if is_toy else "the tiny model of the tests"
    lines = [
        *provenance(f"python tests/bench/cached_prefix.py{' --toy' if is_toy else ''}"),
        f"- Real steps of {name}, float32, eager; a prefix of {PREFIX_TOKENS:,} tokens and more, "
        f"{NEW_TOKENS} new ones; from intake to the first token, least of {len(pairs)}",
        "",
        *goal_table(goals),
        "",
        f"Cold {cold_s:.2f} s, cached {cached_s:.3f} s. Beyond the new tokens, for prefixes of "
        f"{PREFIX_TOKENS:,} + {', '.join(map(str, REMAINDERS))} tokens: "
        f"{', '.join(map(str, excess))}.",
    ]
    return "\n".join(lines), goals


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--toy", action="store_true", help="the 53M toy in place of a tiny model")
    parser.add_argument("--no-write", action="store_true", help="print only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    text, goals = report(is_toy=arguments.toy)
    conclude(RESULTS, TITLE, text, goals, is_written=not arguments.no_write)


if __name__ == "__main__":
    main()
