"""On the real model, strict: what comes back from host or disk changes no bit of an answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from engine.test_prefix_neutrality import OFF, TAIL, tokens_of
from support.stepped import SteppedCore
from support.tiny_checkpoint import make_tiny_checkpoint
from support.tiny_engine import tiny_core
from trnrt_engine.cache.disk_store import DiskStore
from trnrt_engine.cache.entries import EntryKind
from trnrt_engine.cache.host_store import HostStore
from trnrt_engine.config import EngineConfig
from trnrt_engine.loading import load_core

if TYPE_CHECKING:
    from trnrt_kernels.models.glm5_next.model import Model

MIB = 2**20
CACHE_ID = bytes(range(32))


class Box:
    """Makes engines and stores, and closes them."""

    def __init__(self, model: Model, folder: Path) -> None:
        self.model = model
        self.folder = folder
        self._stack = ExitStack()

    def host(self, *, shared: bool = False, mib: int = 64) -> HostStore:
        return HostStore(self.folder / "host" if shared else None, budget_bytes=mib * MIB)

    def disk(self) -> DiskStore:
        return DiskStore(self.folder / "disk", 256 * MIB)

    def engine(self, **fields) -> SteppedCore:
        settings = {"num_bundle_slots": 24, "cache_id": CACHE_ID, **fields}
        core = tiny_core(self.model, **settings)
        self._stack.callback(core.cache.close)
        return SteppedCore(core)

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def box(tiny_model: Model, tmp_path: Path) -> Iterator[Box]:
    box = Box(tiny_model, tmp_path)
    yield box
    box.close()


class Gate:
    """Holds every copy up while it is shut."""

    def __init__(self) -> None:
        self._is_open = threading.Event()
        self._is_open.set()
        self.shut, self.open = self._is_open.clear, self._is_open.set

    def __call__(self) -> None:
        assert self._is_open.wait(60)


def answer(engine: SteppedCore, name: str, prompt: list[int], **fields) -> tuple:
    engine.submit(name, prompt, **TAIL, **fields)
    engine.run()
    return engine.tokens(name), engine.logprobs(name)


def cold(box: Box, prompt: list[int]) -> tuple:
    return answer(SteppedCore(tiny_core(box.model)), "cold", prompt, cache=OFF)


def check_quiet(engine: SteppedCore) -> None:
    """No copy, pin or lock is left."""
    cache = engine.core.cache
    assert not cache.is_copying
    assert cache.tiers.num_pinned == 0
    cache.flush_device()
    cache.check_integrity([])
    assert cache.num_free_pages == cache.num_pages
    assert cache.num_free_state_slots == cache.num_state_slots


@pytest.mark.parametrize("page_size", [64, 256])
@pytest.mark.parametrize("length", [65, 128, 257, 449])
@pytest.mark.parametrize("tier", ["host", "disk"])
def test_an_evicted_prefix_comes_back_bit_for_bit(
    box: Box, tier: str, length: int, page_size: int
) -> None:
    stores = {"host": box.host()} if tier == "host" else {"disk": box.disk()}
    engine = box.engine(page_size=page_size, max_num_batched_tokens=256, **stores)
    prompt = tokens_of(length, length)
    expected = cold(box, prompt)
    assert answer(engine, "first", prompt) == expected
    engine.core.cache.flush_device()
    assert answer(engine, "again", prompt) == expected
    report = engine.report("again")
    assert (report.tier, report.reason) == (tier, "hit")
    assert engine.end("again").num_cached_tokens == (length - 1) // 64 * 64
    check_quiet(engine)


def test_a_sibling_finds_what_the_other_engine_wrote(box: Box) -> None:
    prompt = tokens_of(1, 330)
    expected = cold(box, prompt)
    first, second = (box.engine(page_size=128, host=box.host(shared=True)) for _ in range(2))
    assert answer(first, "a", prompt) == expected
    assert answer(second, "b", prompt) == expected
    assert second.report("b").tier == "host"
    assert second.end("b").num_cached_tokens == 320
    check_quiet(second)


def test_a_restart_hits_from_disk_but_not_another_checkpoint(box: Box) -> None:
    prompt = tokens_of(2, 200)
    expected = cold(box, prompt)
    first = box.engine(host=box.host(), disk=box.disk())
    assert answer(first, "a", prompt) == expected
    first.core.cache.close()
    again = box.engine(host=box.host(), disk=box.disk())
    assert answer(again, "b", prompt) == expected
    assert again.report("b").tier == "disk"
    other = box.engine(disk=box.disk(), cache_id=bytes(32))
    assert answer(other, "c", prompt) == expected
    assert other.end("c").num_cached_tokens == 0


def test_a_growing_conversation_goes_on_from_host(box: Box) -> None:
    """The states lie where the last turn ended, at no border the next turn knows."""
    engine, last = box.engine(page_size=128, host=box.host()), 0
    for turn, length in enumerate((150, 230, 333, 460)):
        prompt = tokens_of(7, length)
        assert answer(engine, str(turn), prompt) == cold(box, prompt)
        if turn:
            assert engine.report(str(turn)).tier == "host"
            assert engine.report(str(turn)).state_depth >= last
        last = (length - 1) // 64 * 64
        engine.core.cache.flush_device()
    check_quiet(engine)


@pytest.mark.parametrize("kind", [EntryKind.PAGE, EntryKind.STATES])
def test_a_missing_part_is_computed_again(box: Box, kind: EntryKind) -> None:
    prompt, host = tokens_of(3, 300), box.host()
    engine = box.engine(page_size=64, host=host)
    expected = cold(box, prompt)
    answer(engine, "first", prompt)
    engine.core.cache.flush_device()
    key = next(k for k in keys_of(host) if k[16:17] == kind.value)
    host.remove(key)
    assert answer(engine, "again", prompt) == expected
    check_quiet(engine)
    assert answer(engine, "repaired", prompt) == expected
    assert engine.report("repaired").tier == "host"
    assert engine.end("repaired").num_cached_tokens == 256


@pytest.mark.parametrize("offset", [8, 30, 70, 200])
def test_damaged_or_foreign_bytes_are_refused(box: Box, offset: int) -> None:
    """A changed byte fails the checksum; a changed byte with a right checksum, the header."""
    prompt, host = tokens_of(4, 200), box.host()
    engine = box.engine(page_size=64, host=host)
    expected = cold(box, prompt)
    answer(engine, "first", prompt)
    engine.core.cache.flush_device()
    for key in list(keys_of(host)):
        with host.get(key) as pinned:
            content = bytearray(pinned.view)
        content[offset] ^= 1
        if offset < 70:
            host.remove(key)
            host.put(key, [memoryview(content)])
        else:
            entry = host._directory.find(key)
            host._parts(entry)[0][offset] ^= 1
    assert answer(engine, "again", prompt) == expected
    assert engine.report("again").reason == "load_failed"
    assert engine.end("again").num_cached_tokens == 0
    assert engine.core.cache.tier_counters.failed_loads >= 1
    check_quiet(engine)


def test_a_late_load_is_given_up_and_frees_all_when_it_ends(box: Box) -> None:
    gate, prompt = Gate(), tokens_of(5, 260)
    expected = cold(box, prompt)
    engine = box.engine(page_size=64, host=box.host(), delay=gate, late_after_s=0.02)
    answer(engine, "first", prompt)
    engine.core.cache.flush_device()
    gate.shut()
    engine.submit("late", prompt, **TAIL)
    while "late" not in engine.deltas or engine.deltas["late"][-1].finish_reason is None:
        engine.step()
    assert (engine.tokens("late"), engine.logprobs("late")) == expected
    assert engine.report("late").reason == "load_late"
    assert engine.core.cache.is_copying
    gate.open()
    engine.run()
    check_quiet(engine)


def test_others_run_while_one_waits_and_an_abort_frees_its_load(box: Box) -> None:
    gate, prompt, other = Gate(), tokens_of(6, 300), tokens_of(8, 90)
    engine = box.engine(page_size=64, host=box.host(), delay=gate, late_after_s=60.0)
    answer(engine, "first", prompt)
    engine.core.cache.flush_device()
    gate.shut()
    engine.submit("waits", prompt, **TAIL)
    engine.submit("same", prompt, **TAIL)
    engine.submit("other", other, **TAIL)
    while "other" not in engine.deltas or engine.deltas["other"][-1].finish_reason is None:
        engine.step()
    assert engine.tokens("other") == cold(box, other)[0]
    assert len(engine.core.scheduler.waiting) == 2
    engine.abort("waits")
    gate.open()
    engine.run()
    assert engine.report("same").tier == "host"
    assert engine.tokens("same") == cold(box, prompt)[0]
    engine.core.cache.flush_device()
    gate.shut()
    engine.submit("gone", prompt, **TAIL)
    engine.step()
    engine.abort("gone")
    assert engine.core.cache.is_copying
    gate.open()
    engine.run()
    check_quiet(engine)


def test_a_flush_reaches_every_tier_and_only_its_salt(box: Box) -> None:
    prompt = tokens_of(9, 200)
    engine = box.engine(page_size=64, host=box.host(), disk=box.disk())
    for salt in ("a", "b"):
        answer(engine, salt, prompt, cache_salt=salt)
    engine.core.cache.flush("a")
    engine.core.cache.flush_device()
    answer(engine, "a2", prompt, cache_salt="a")
    answer(engine, "b2", prompt, cache_salt="b")
    assert engine.end("a2").num_cached_tokens == 0
    assert engine.report("b2").tier == "host"
    check_quiet(engine)


def test_numbers_that_are_not_finite_leave_nothing_below(box: Box) -> None:
    prompt, host = tokens_of(3, 200), box.host()
    engine = box.engine(page_size=64, host=host, max_num_batched_tokens=64)
    engine.submit("bad", prompt, **TAIL, marks=[64, 128])
    engine.step()
    slot = engine.core.scheduler.running[0].cache.state_slot
    for layer in engine.core.runner.caches.layers:
        if "kda_state" in layer:
            layer["kda_state"][slot] = float("nan")
    engine.run()
    assert engine.end("bad").finish_reason == "error"
    assert list(keys_of(host)) == []
    check_quiet(engine)


def keys_of(host: HostStore) -> Iterator[bytes]:
    for entry in host._directory.entries():
        yield host._directory.key_of(int(entry))


def test_only_the_same_checkpoint_and_mode_hit_after_a_restart(tmp_path: Path) -> None:
    """Through the loader: the name of the numbers is made of the files and the settings."""
    sizes = {"fp8": False, "num_shards": 1, "max_position_embeddings": 512}
    for seed in range(2):
        make_tiny_checkpoint(tmp_path / str(seed), seed=seed, hc_sinkhorn_iters=3, **sizes)
    prompt = tokens_of(11, 200)

    def tier_of(seed: int, **settings) -> str:
        config = EngineConfig(
            model_dir=tmp_path / str(seed), cache_disk_dir=str(tmp_path / "disk"), **settings
        )
        engine = SteppedCore(load_core(config))
        answer(engine, "a", prompt)
        engine.core.cache.close()
        return engine.report("a").tier

    assert tier_of(0) == ""
    assert tier_of(0) == "disk"
    assert tier_of(1) == ""
    assert tier_of(0, numeric_mode="strict") == ""
    assert tier_of(0, dtype="float32") == ""
    assert tier_of(0) == "disk"
