"""Tiers below the device over a device of plain bytes: what is asked, pinned, given back."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator

import pytest

from trnrt_engine.api import CacheControl, CacheMode
from trnrt_engine.cache.entries import EntryKind
from trnrt_engine.cache.host_store import HostStore
from trnrt_engine.cache.manager import CacheManager
from trnrt_engine.cache.prefix_key import PrefixKey
from trnrt_engine.cache.probe import MAX_PROBES, deepest_states
from trnrt_engine.cache.sequence import Admission, SequenceCache
from trnrt_engine.cache.tiers import LowerTiers

PAGE = 128
CACHE_ID = bytes(range(32))
READ = CacheControl(mode=CacheMode.READ)


class ByteDevice:
    """Pages and slots of a few bytes; what a prompt leaves in them follows from its tokens."""

    def __init__(self, num_pages: int, num_slots: int) -> None:
        self.pages = [bytearray(PAGE) for _ in range(num_pages)]
        self.slots = [bytearray(8) for _ in range(num_slots)]

    def page(self, page_id: int, *, num_tokens: int) -> list[memoryview]:
        return [memoryview(self.pages[page_id])[:num_tokens]]

    def states(self, slot: int) -> list[memoryview]:
        return [memoryview(self.slots[slot])]


class Rig:
    """A manager whose prompts are computed at once, chunk by chunk."""

    def __init__(self, host: HostStore, *, num_pages: int = 24, num_bundle_slots: int = 8, **lower):
        self.device = ByteDevice(num_pages + 1, 4 + 1 + num_bundle_slots)
        self.now_s = 0.0
        self.cache = CacheManager(
            num_pages=num_pages,
            page_size=PAGE,
            num_state_slots=4,
            num_scratch=1,
            num_bundle_slots=num_bundle_slots,
            cache_id=CACHE_ID,
            lower=LowerTiers(device=self.device, host=host, **lower),
            clock=lambda: self.now_s,
        )
        self.live: list[SequenceCache] = []

    def check(self) -> None:
        self.cache.check_integrity(self.live)

    def poll(self) -> None:
        self.cache.poll()
        self.check()

    def settle(self) -> None:
        while self.cache.is_copying:
            self.cache.wait_for_copies(0.1)
            self.poll()
        assert self.cache.tiers.num_pinned == 0

    def try_admit(self, ask: Admission) -> SequenceCache | None:
        self.poll()
        sequence = self.cache.admit(ask)
        if sequence is not None:
            self.live.append(sequence)
        self.check()
        return sequence

    def compute(self, ask: Admission, sequence: SequenceCache) -> None:
        """Prove what a hit gave, then compute the rest of the prompt and end."""
        prompt = bytes(token % 251 for token in ask.token_ids)
        at = sequence.num_cached_tokens
        if sequence.restore is not None:
            for source, target in sequence.restore.page_copies:
                self.device.pages[target][:] = self.device.pages[source]
            assert self.device.slots[sequence.restore.state_slot] == states_at(prompt, at)
        for index, page_id in enumerate(sequence.page_ids):
            span = prompt[index * PAGE : min((index + 1) * PAGE, at)]
            assert self.device.pages[page_id][: len(span)] == span
        while at < len(prompt):
            end = min(at + 192, len(prompt))
            self.cache.grow(sequence, end)
            for export in self.cache.plan_exports(sequence, at, end):
                state = states_at(prompt, at + export.num_tokens)
                self.device.slots[export.state_slot][:] = state
            for position in range(at, end):
                page_id = sequence.page_ids[position // PAGE]
                self.device.pages[page_id][position % PAGE] = prompt[position]
            self.cache.publish(sequence, end)
            self.check()
            at = end
        self.end(sequence)

    def end(self, sequence: SequenceCache) -> None:
        self.live.remove(sequence)
        self.cache.release(sequence)
        self.check()

    def run(self, tokens: list[int], **fields) -> SequenceCache:
        ask = Admission(max_tokens=len(tokens) + 4, token_ids=tokens, **fields)
        while (sequence := self.try_admit(ask)) is None:
            self.cache.wait_for_copies(0.1)
        self.compute(ask, sequence)
        return sequence


def states_at(prompt: bytes, position: int) -> bytes:
    return (sum(prompt[:position]) * 64 + position).to_bytes(8, "little")


def tokens_of(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(1000), k=length)


@pytest.fixture
def host() -> HostStore:
    return HostStore(None, budget_bytes=1 << 20, block_bytes=256)


@pytest.fixture
def rig(host: HostStore) -> Iterator[Rig]:
    rig = Rig(host)
    yield rig
    rig.settle()
    rig.cache.flush()
    rig.check()
    assert rig.cache.num_free_pages == rig.cache.num_pages
    assert rig.cache.num_free_state_slots == rig.cache.num_state_slots
    rig.cache.close()


def test_what_is_worth_it_is_copied_and_chunk_ends_are_not(rig: Rig, host: HostStore) -> None:
    rig.run(tokens_of(1, 500), marks=[70, 330])
    rig.settle()
    keys = [host._directory.key_of(int(entry)) for entry in host._directory.entries()]
    states = [key for key in keys if key[16:17] == EntryKind.STATES.value]
    assert len(states) == 3  # 64, 320 and 448; not 192 and 384, where chunks end
    assert all(len(key) == 64 for key in keys)


def test_what_has_a_time_to_live_stays_on_the_device(rig: Rig, host: HostStore) -> None:
    rig.run(tokens_of(2, 300), control=CacheControl(ttl_s=5.0))
    rig.settle()
    assert host.stats().num_entries == 0


def test_a_reader_loads_and_writes_nothing(rig: Rig, host: HostStore) -> None:
    tokens = tokens_of(3, 300)
    rig.run(tokens, control=READ)
    rig.settle()
    assert host.stats().num_entries == 0
    rig.run(tokens)
    rig.settle()
    rig.cache.flush_device()
    assert rig.run(tokens, control=READ).report.tier == "host"


def test_locks_last_until_copies_end_and_nothing_locked_is_evicted(host: HostStore) -> None:
    is_open = threading.Event()
    rig = Rig(host, num_pages=6, num_bundle_slots=4, delay=lambda: is_open.wait(60))
    rig.run(tokens_of(4, 380))
    assert rig.cache.is_copying
    ask = Admission(max_tokens=700, token_ids=tokens_of(5, 600))
    assert rig.try_admit(ask) is None  # all other room there is, and the copy under way holds some
    is_open.set()
    rig.settle()
    sequence = rig.try_admit(ask)
    assert sequence is not None
    rig.compute(ask, sequence)
    rig.settle()
    rig.cache.close()


def test_a_deeper_bundle_is_loaded_below_what_the_device_has(rig: Rig) -> None:
    tokens = tokens_of(6, 700)
    rig.run(tokens)
    rig.settle()
    rig.cache.flush_device()
    rig.run([*tokens[:300], 7, 8, 9])
    assert rig.run(tokens).num_cached_tokens == 640
    report = rig.run([*tokens, 1, 2, 3]).report
    assert (report.tier, report.state_depth) == ("device", 640)


def test_loads_that_landed_do_not_block_each_other(host: HostStore) -> None:
    rig = Rig(host, num_pages=8, num_bundle_slots=6)
    prompts = [tokens_of(20 + number, 300) for number in range(2)]
    for prompt in prompts:
        rig.run(prompt)
        rig.settle()
    rig.cache.flush_device()
    asks = [Admission(max_tokens=420, token_ids=prompt) for prompt in prompts]
    assert [rig.try_admit(ask) for ask in asks] == [None, None]
    while rig.cache.is_copying:
        rig.cache.wait_for_copies(0.1)
        rig.poll()
    greedy = Admission(max_tokens=8 * PAGE, token_ids=tokens_of(30, 900))
    sequence = rig.try_admit(greedy)
    assert sequence is not None
    rig.compute(greedy, sequence)
    for ask in asks:
        while (sequence := rig.try_admit(ask)) is None:
            rig.cache.wait_for_copies(0.1)
        rig.compute(ask, sequence)
    rig.settle()
    rig.cache.close()


def test_a_full_host_costs_hits_and_no_answers(host: HostStore) -> None:
    small = HostStore(None, budget_bytes=24_576, block_bytes=256)
    rig = Rig(small)
    for round_ in range(3):
        for seed in range(4):
            rig.run(tokens_of(10 + seed, 400 + round_))
            rig.settle()
            rig.cache.flush_device()
    small.check_integrity()
    rig.cache.close()


@pytest.mark.parametrize("seed", range(12))
def test_any_interleaving_gives_what_was_computed(seed: int) -> None:
    """Admissions, aborts, evictions, losses and slow copies in random order; two engines."""
    chance = random.Random(seed)
    host = HostStore(None, budget_bytes=1 << 16, block_bytes=256)
    delay = (lambda: time.sleep(chance.choice((0, 0, 0.002)))) if seed % 2 else None
    rigs = [
        Rig(host, num_pages=14, num_bundle_slots=5, delay=delay, late_after_s=0.5 + seed % 3)
        for _ in range(2)
    ]
    asks: list[tuple[Rig, Admission]] = []
    loaded = 0
    for _ in range(400):
        rig = chance.choice(rigs)
        match chance.randrange(10):
            case 0 | 1 | 2:
                stem = tokens_of(chance.randrange(3), chance.choice((64, 200, 256, 385)))
                tokens = stem + tokens_of(chance.randrange(5, 8), chance.randrange(1, 260))
                marks = [len(stem)]
                asks.append(
                    (rig, Admission(max_tokens=len(tokens) + 3, token_ids=tokens, marks=marks))
                )
            case 3:
                rig.cache.flush_device()
            case 4 if asks:
                rig, ask = asks.pop(chance.randrange(len(asks)))
                rig.cache.withdraw(ask)
            case 5:
                keys = [host._directory.key_of(int(e)) for e in host._directory.entries()]
                if keys and chance.random() < 0.5:
                    host.remove(chance.choice(keys))
            case 6:
                rig.now_s += chance.choice((0.01, 1.0))
            case 7 if chance.random() < 0.1:
                rig.cache.flush("")
            case _:
                rig.cache.wait_for_copies(0.001)
                rig.poll()
        for place in range(len(asks) - 1, -1, -1):
            rig, ask = asks[place]
            sequence = rig.try_admit(ask)
            if sequence is not None:
                del asks[place]
                loaded += sequence.report.tier == "host"
                rig.compute(ask, sequence)
        for rig in rigs:
            rig.check()
    for rig, ask in asks:
        rig.cache.withdraw(ask)
    for rig in rigs:
        rig.settle()
        rig.cache.flush_device()
        rig.check()
        assert rig.cache.num_free_pages == rig.cache.num_pages
        assert rig.cache.num_free_state_slots == rig.cache.num_state_slots
    host.check_integrity()
    assert loaded or seed % 2


@pytest.mark.parametrize("num_tokens", [65, 1000, 131_072])
def test_look_ups_are_bounded(num_tokens: int) -> None:
    key = PrefixKey(range(num_tokens), salt="", page_size=PAGE)
    marks = list(range(0, num_tokens, max(num_tokens // 20, 1)))
    known: set[bytes] = set()
    asked: list[bytes] = []

    def contains(kind: EntryKind, prefix_hash: bytes) -> bool:
        asked.append(prefix_hash)
        return kind is EntryKind.PAGE and prefix_hash in known

    for num_known in (0, key.num_pages // 2, key.num_pages):
        known.update(key.page_hash(index) for index in range(num_known))
        asked.clear()
        assert deepest_states(key, marks, num_pages=0, above=0, contains=contains) is None
        limit = key.num_pages.bit_length() + 2 + MAX_PROBES + len(marks)
        assert len(asked) <= (limit if num_known else 2 + PAGE // 64)
