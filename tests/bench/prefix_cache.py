"""CPU time of a prefix lookup in a small and in a large tree, and of the bookkeeping of a step.

    python tests/bench/prefix_cache.py [--prompt 131072] [--pages 10000 1000000] [--no-write]

Required: a prompt of 131,072 tokens in a tree of 1,000,000 pages at most 4 ms, and at most 4 times
what it takes in a tree of 10,000; bookkeeping of a decode step at most 50 us. A lookup hashes the
prompt and walks down; its ids are packed once, at intake, and that is timed beside the check of
the ids that it is part of. Many prompts are asked in turn, so that the tree lies in cold memory,
small and large tree in turn. The million pages take about 2 GiB.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from array import array
from collections.abc import Callable

from results import RESULTS, Goal, conclude, goal_table, provenance

from trnrt_engine.api import CacheControl, EngineRequest
from trnrt_engine.cache.bundles import Kind
from trnrt_engine.cache.manager import CacheManager
from trnrt_engine.cache.pages import PagePool
from trnrt_engine.cache.prefix_cache import PrefixCache
from trnrt_engine.cache.prefix_key import PrefixKey
from trnrt_engine.cache.sequence import Admission
from trnrt_engine.cache.states import StateSlots
from trnrt_engine.intake import RequestLimits, make_request

PAGE_SIZE = 256
BUNDLE_EVERY = 8
ROUNDS = 48
TITLE = "Prefix lookup and bookkeeping"


def tokens_of(chance: random.Random, count: int) -> array[int]:
    """Random ids, packed."""
    return array("I", chance.randbytes(4 * count))


class FilledTree:
    """A tree of random paths, all as long as the prompt, with a bundle every eight pages.

    Attributes:
        prompts: some of its paths, each with a token behind.
    """

    def __init__(self, *, num_pages: int, path_tokens: int, max_prompts: int = 16) -> None:
        pool = PagePool(num_pages, first_id=0)
        slots = StateSlots(num_pages // BUNDLE_EVERY, first_id=0)
        self.prefix = PrefixCache(
            pool, slots, page_size=PAGE_SIZE, cache_id=b"bench", clock=time.monotonic
        )
        chance, prefix, count = random.Random(num_pages), self.prefix, 0
        self.prompts: list[array[int]] = []
        while count < num_pages:
            tokens = tokens_of(chance, path_tokens)
            key = PrefixKey(tokens, salt="", page_size=PAGE_SIZE)
            node = prefix.tree.root(key)
            for index in range(min(key.num_pages, num_pages - count)):
                pool.reserve(1)
                end = (index + 1) * PAGE_SIZE
                node = prefix.add_page(node, key, end, pool.allocate_reserved())
                count += 1
                if (index + 1) % BUNDLE_EVERY == 0 and (slot := prefix.take_slot(Kind.TAIL)):
                    prefix.add_bundle(node, end, key.hash_at(end), slot, Kind.TAIL)
            if node.end == path_tokens and len(self.prompts) < max_prompts:
                self.prompts.append(array("I", [*tokens, 1]))
        self._turn = itertools.cycle(self.prompts)

    def lookup(self) -> float:
        """Look the next prompt up for the first time; returns milliseconds of CPU time."""
        prompt = next(self._turn)
        started_s = time.process_time()
        key = PrefixKey(prompt, salt="", page_size=PAGE_SIZE)
        found = self.prefix.lookup(key).bundle
        took_ms = (time.process_time() - started_s) * 1e3
        whole = PAGE_SIZE * BUNDLE_EVERY
        assert found is not None
        assert found.position == (len(prompt) - 1) // whole * whole
        return took_ms


def measure_ms(work: Callable[[], object], *, repeat: int = 25) -> float:
    """Median CPU time of a call."""
    times_ms = []
    for _ in range(repeat):
        started_s = time.process_time()
        work()
        times_ms.append((time.process_time() - started_s) * 1e3)
    return statistics.median(times_ms)


def intake_ms(num_tokens: int) -> float:
    """Median of taking a request in, which checks and packs its ids."""
    limits = RequestLimits(
        vocab_size=2**17,
        max_model_len=2**20,
        num_pages=2**13,
        page_size=PAGE_SIZE,
        eos_token_ids=(),
    )
    ids = [token_id % 2**17 for token_id in tokens_of(random.Random(1), num_tokens)]
    spec = EngineRequest(request_id="r", token_ids=ids)
    return measure_ms(lambda: make_request(spec, limits, arrival_s=0.0))


def decode_us() -> float:
    """Median bookkeeping of twelve sequences that each grow by one position."""
    cache = CacheManager(
        num_pages=12_000,
        page_size=PAGE_SIZE,
        num_state_slots=12,
        num_scratch=12,
        num_bundle_slots=64,
    )
    ask = [
        Admission(max_tokens=200_000, token_ids=[i] * 1000, control=CacheControl())
        for i in range(12)
    ]
    held = [cache.admit(each) for each in ask]
    position = 131_072
    for each in held:
        cache.grow(each, position)

    def step() -> None:
        nonlocal position
        position += 1
        for each in held:
            cache.grow(each, position)

    return measure_ms(step, repeat=3000) * 1e3


def report(num_tokens: int, small: int, large: int) -> tuple[str, list[Goal]]:
    """Measure all; returns the section and its goals."""
    trees = {count: FilledTree(num_pages=count, path_tokens=num_tokens) for count in (small, large)}
    times_ms: dict[int, list[float]] = {count: [] for count in trees}
    for _ in range(ROUNDS):
        for count, tree in trees.items():
            times_ms[count].append(tree.lookup())
    median = {count: statistics.median(times) for count, times in times_ms.items()}
    name = f"lookup of {num_tokens:,} tokens"
    goals = [
        Goal(f"{name} in {large:,} pages", 2.2, median[large], "{:.2f} ms", most=4.0),
        Goal(f"{large:,} / {small:,} pages", 1.3, median[large] / median[small], "{:.2f}", most=4),
        Goal("bookkeeping of a decode step, batch 12", 10, decode_us(), "{:.0f} us", most=50),
    ]
    lines = [
        *provenance("python tests/bench/prefix_cache.py"),
        f"- CPU time, median of {ROUNDS}, small and large tree in turn; a lookup hashes the prompt "
        "and walks",
        "",
        *goal_table(goals),
        "",
        f"Fastest: {min(times_ms[large]):.2f} ms in {large:,} pages, {min(times_ms[small]):.2f} ms "
        f"in {small:,}. Taking the request in, which packs its ids once for all lookups and checks "
        f"them: {intake_ms(num_tokens):.2f} ms.",
    ]
    return "\n".join(lines), goals


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", type=int, default=131_072)
    parser.add_argument("--pages", type=int, nargs=2, default=[10_000, 1_000_000])
    parser.add_argument("--no-write", action="store_true", help="print only")
    arguments = parser.parse_args()
    text, goals = report(arguments.prompt, *arguments.pages)
    conclude(RESULTS, TITLE, text, goals, is_written=not arguments.no_write)


if __name__ == "__main__":
    main()
