"""CPU time of a prefix lookup in a small and in a large tree, and of the bookkeeping of a step.

    python tests/bench/prefix_cache.py [--prompt 131072] [--pages 10000 1000000]

Required: a prompt of 131,072 tokens in a tree of 1,000,000 pages at most 4 ms, and at most 4 times
what it takes in a tree of 10,000; bookkeeping of a decode step at most 50 us. The million pages
take about 2 GiB.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from array import array
from collections.abc import Callable

from trnrt_engine.api import CacheControl
from trnrt_engine.cache.bundles import Kind
from trnrt_engine.cache.manager import CacheManager
from trnrt_engine.cache.pages import PagePool
from trnrt_engine.cache.prefix_cache import PrefixCache
from trnrt_engine.cache.prefix_key import PrefixKey
from trnrt_engine.cache.sequence import Admission
from trnrt_engine.cache.states import StateSlots

PAGE_SIZE = 256
VOCAB_SIZE = 154_880
BUNDLE_EVERY = 8


def tokens_of(chance: random.Random, count: int) -> list[int]:
    """Random ids; bytes first, which is quicker than an id at a time."""
    return [value % VOCAB_SIZE for value in array("I", chance.randbytes(4 * count))]


def fill(prefix: PrefixCache, pool: PagePool, prompt: list[int], *, num_pages: int) -> None:
    """Put the prompt into the tree, then random paths of as many pages until it is full."""
    chance, count = random.Random(0), 0
    path_pages = len(prompt) // PAGE_SIZE
    while count < num_pages:
        tokens = tokens_of(chance, len(prompt)) if count else prompt
        key = PrefixKey(tokens, salt="", page_size=PAGE_SIZE)
        node = prefix.tree.root(key)
        for index in range(min(path_pages, num_pages - count)):
            pool.reserve(1)
            end = (index + 1) * PAGE_SIZE
            node = prefix.add_page(node, key, end, pool.allocate_reserved())
            count += 1
            if (index + 1) % BUNDLE_EVERY == 0 and (slot := prefix.take_slot(Kind.TAIL)):
                prefix.add_bundle(node, end, key.hash_at(end), slot, Kind.TAIL)


def measure_ms(work: Callable[[], object], *, repeat: int = 25) -> float:
    """Median CPU time of a call."""
    times_ms = []
    for _ in range(repeat):
        started_s = time.process_time()
        work()
        times_ms.append((time.process_time() - started_s) * 1e3)
    return statistics.median(times_ms)


def lookup_ms(prompt: list[int], *, num_pages: int) -> tuple[float, float, float]:
    """Median times: pack the ids, hash and look up, look up what has been hashed."""
    pool = PagePool(num_pages, first_id=0)
    slots = StateSlots(num_pages // BUNDLE_EVERY, first_id=0)
    prefix = PrefixCache(pool, slots, page_size=PAGE_SIZE, cache_id=b"bench", clock=time.monotonic)
    fill(prefix, pool, prompt, num_pages=num_pages)
    asked = [*prompt, 1]

    def pack() -> PrefixKey:
        return PrefixKey(asked, salt="", page_size=PAGE_SIZE)

    packed_ms = measure_ms(pack)
    keys = [pack() for _ in range(25)]
    found = prefix.lookup(pack()).bundle
    assert found is not None
    assert found.position == len(prompt) // PAGE_SIZE // BUNDLE_EVERY * BUNDLE_EVERY * PAGE_SIZE
    fresh = iter(keys)
    first_ms = measure_ms(lambda: prefix.lookup(next(fresh)))
    return packed_ms, first_ms, measure_ms(lambda: prefix.lookup(keys[0]))


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


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt", type=int, default=131_072)
    parser.add_argument("--pages", type=int, nargs="+", default=[10_000, 1_000_000])
    arguments = parser.parse_args()
    prompt = tokens_of(random.Random(1), arguments.prompt)
    for num_pages in arguments.pages:
        packed_ms, first_ms, again_ms = lookup_ms(prompt, num_pages=num_pages)
        print(
            f"lookup of {arguments.prompt} tokens in {num_pages} pages, CPU, median of 25: "
            f"pack {packed_ms:.2f} ms, hash and look up {first_ms:.2f} ms, "
            f"look up again {again_ms:.2f} ms (required <= 4 ms)",
            flush=True,
        )
    print(f"bookkeeping of a decode step, batch 12, CPU: {decode_us():.0f} us (required <= 50 us)")


if __name__ == "__main__":
    main()
