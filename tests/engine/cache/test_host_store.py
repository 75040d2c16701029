"""The store in host memory: what it holds, what it gives up, what it refuses."""

from __future__ import annotations

import struct
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trnrt_engine.cache.arena import ARENA_NAME, Layout, layout_within
from trnrt_engine.cache.bytestore import CacheRefused, Pinned
from trnrt_engine.cache.host_store import HostStore
from trnrt_engine.errors import IntegrityError

BLOCK = 256
LAYOUT = Layout(block_bytes=BLOCK, num_blocks=16)


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def data(number: int, size: int) -> bytes:
    return np.random.default_rng(number).bytes(size)


def views(content: bytes | bytearray, *cuts: int) -> list[memoryview]:
    edges = [0, *cuts, len(content)]
    return [memoryview(content)[a:b] for a, b in pairwise(edges)]


def small_store(folder: Path | None = None, *, recreate: bool = False) -> HostStore:
    """Make a store of 16 blocks of 256 bytes."""
    return HostStore(folder, budget_bytes=LAYOUT.file_bytes, block_bytes=BLOCK, recreate=recreate)


def read(store: HostStore, name: bytes) -> bytes | None:
    pinned = store.get(name)
    if pinned is None:
        return None
    with pinned:
        return bytes(pinned.view)


@pytest.fixture(params=["private", "shared"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> HostStore:
    return small_store(tmp_path if request.param == "shared" else None)


@pytest.mark.parametrize("budget_bytes", [20_000, 100_000, 10_000_001, 64 << 30])
def test_layout_fills_the_budget_and_stays_in_it(budget_bytes: int) -> None:
    block_bytes = 65536 if budget_bytes > 1 << 20 else 256
    layout = layout_within(budget_bytes, block_bytes=block_bytes)
    more = Layout(block_bytes=block_bytes, num_blocks=layout.num_blocks + 1)
    assert layout.file_bytes <= budget_bytes
    # The key index doubles at powers of two; else not one more block would fit.
    assert more.file_bytes > budget_bytes or layout.num_blocks > 0.95 * (
        budget_bytes / (block_bytes + 130)
    )


def test_budget_without_room_for_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no block"):
        HostStore(None, budget_bytes=8192, block_bytes=BLOCK)


@pytest.mark.parametrize("size", [0, 1, 255, 256, 257, 1000, 4096])
def test_bytes_come_back_whatever_the_cuts(store: HostStore, size: int) -> None:
    content = data(1, size)
    assert store.put(key(1), views(content, size // 3, size // 2))
    pinned = store.get(key(1))
    assert pinned is not None
    with pinned:
        assert pinned.view.readonly
        assert bytes(pinned.view) == content == b"".join(pinned.parts)
        buffers = [bytearray(size // 2), bytearray(size - size // 2)]
        pinned.copy_into([memoryview(buffer) for buffer in buffers])
        assert b"".join(buffers) == content
    assert store.num_bytes == max(1, -(-size // BLOCK)) * BLOCK
    store.check_integrity()


def test_chunks_of_other_element_types_are_bytes(store: HostStore) -> None:
    content = np.arange(60, dtype=np.float32).reshape(3, 20)
    assert store.put(key(1), [memoryview(content)])
    assert read(store, key(1)) == content.tobytes()


def test_view_is_dead_after_release(store: HostStore) -> None:
    store.put(key(1), views(b"abc"))
    with store.get(key(1)) as pinned:  # type: ignore[union-attr]
        view = pinned.view
    with pytest.raises(ValueError, match="released"):
        bytes(view)


def test_entries_are_immutable(store: HostStore) -> None:
    assert store.put(key(1), views(b"first"))
    assert store.put(key(1), views(b"second"))
    assert read(store, key(1)) == b"first"


def test_too_large_is_refused_and_evicts_nothing(store: HostStore) -> None:
    assert store.put(key(1), views(b"small"))
    assert not store.put(key(2), views(bytes(16 * BLOCK + 1)))
    assert key(1) in store
    assert store.stats().refused == 1


def test_least_value_goes_first_then_least_recently_used(store: HostStore) -> None:
    for number, value in ((1, 5), (2, 0), (3, 0), (4, -1)):
        assert store.put(key(number), views(bytes(4 * BLOCK)), value=value)
    assert store.touch(key(2))
    gone = []
    for number in (10, 11, 12):
        store.put(key(number), views(bytes(4 * BLOCK)), value=9)
        gone.append({n for n in (1, 2, 3, 4) if key(n) not in store})
    assert gone == [{4}, {3, 4}, {2, 3, 4}]
    assert store.touch(key(10), value=0)
    store.put(key(13), views(bytes(4 * BLOCK)), value=9)
    assert key(10) not in store
    assert key(1) in store


def test_pinned_is_never_evicted(store: HostStore) -> None:
    for number in range(4):
        store.put(key(number), views(bytes([number]) * 4 * BLOCK))
    pins = [store.get(key(number)) for number in (0, 1)]
    assert store.put(key(8), views(bytes(8 * BLOCK)))
    assert not store.put(key(9), views(bytes(9 * BLOCK)))
    assert key(8) in store
    assert [key(n) in store for n in range(4)] == [True, True, False, False]
    for number, pin in enumerate(pins):
        assert pin is not None
        assert bytes(pin.view) == bytes([number]) * 4 * BLOCK
        pin.release()
        pin.release()
    assert store.put(key(9), views(bytes(9 * BLOCK)))
    store.check_integrity()


@pytest.mark.parametrize("how", ["remove", "flush"])
def test_dropped_while_pinned_stays_readable(store: HostStore, how: str) -> None:
    store.put(key(1), views(b"a" * 300))
    pinned = store.get(key(1))
    assert pinned is not None
    assert store.remove(key(1)) if how == "remove" else store.flush() == 1
    assert key(1) not in store
    assert store.get(key(1)) is None
    assert store.num_bytes == 2 * BLOCK
    assert store.put(key(1), views(b"b"))
    assert bytes(pinned.view) == b"a" * 300
    store.check_integrity()
    pinned.release()
    assert store.num_bytes == BLOCK
    assert read(store, key(1)) == b"b"
    store.check_integrity()


def test_scattered_space_is_used_whole(store: HostStore) -> None:
    for number in range(16):
        store.put(key(number), views(bytes(BLOCK)))
    for number in range(0, 16, 2):
        store.remove(key(number))
    content = data(3, 8 * BLOCK - 7)
    assert store.put(key(99), views(content, 100))
    assert store.stats().evictions == 0
    with store.get(key(99)) as pinned:  # type: ignore[union-attr]
        assert len(pinned.parts) == 8
        assert bytes(pinned.view) == content
        buffer = bytearray(len(content))
        pinned.copy_into([memoryview(buffer)])
        assert buffer == content
    store.check_integrity()


def test_failed_copy_leaves_nothing(store: HostStore) -> None:
    class Broken(Exception):
        pass

    def fail(*_: object) -> None:
        raise Broken

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trnrt_engine.cache.host_store.copy_chunks", fail)
        with pytest.raises(Broken):
            store.put(key(1), views(b"x"))
    assert key(1) not in store
    assert store.num_bytes == 0
    store.check_integrity()


@pytest.mark.parametrize("size", [15, 65])
def test_keys_have_a_length(store: HostStore, size: int) -> None:
    with pytest.raises(ValueError, match="key of"):
        store.put(bytes(size), views(b""))


def test_threads_share_one_store(store: HostStore) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        random = np.random.default_rng(seed)
        for _ in range(150):
            number = int(random.integers(12))
            store.put(key(number), views(data(number, 100 + 90 * number)))
            found = read(store, key(number))
            if found not in (None, data(number, 100 + 90 * number)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    store.check_integrity()
    assert store.stats().damaged == 0


def test_shared_arena_outlives_its_processes(tmp_path: Path) -> None:
    first, second = small_store(tmp_path), small_store(tmp_path)
    first.put(key(1), views(b"hello"))
    assert read(second, key(1)) == b"hello"
    pinned = first.get(key(1))
    second.remove(key(1))
    first.close()
    assert pinned is not None
    pinned.release()
    second.check_integrity()
    assert second.num_bytes == 0
    second.put(key(2), views(b"there"))
    second.close()
    third = small_store(tmp_path)
    assert read(third, key(2)) == b"there"
    third.close()


def damage(path: Path, offset: int, flipped: bytes = b"\xff") -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        old = file.read(len(flipped))
        file.seek(offset)
        file.write(bytes(a ^ b for a, b in zip(old, flipped, strict=True)))


def test_damaged_payload_is_removed_and_counted(tmp_path: Path) -> None:
    store = small_store(tmp_path)
    store.put(key(1), views(bytes(1000)))
    store.put(key(2), views(b"whole"))
    damage(tmp_path / ARENA_NAME, LAYOUT.data_at + 700, b"\x10")
    assert store.get(key(1)) is None
    assert key(1) not in store
    assert store.stats().damaged == 1
    assert store.num_bytes == BLOCK
    assert read(store, key(2)) == b"whole"
    store.check_integrity()


@pytest.mark.parametrize(
    ("column", "flipped"),
    [
        ("crc", 5),
        ("num_bytes", 5),
        ("num_bytes", 512),
        ("num_bytes", 1 << 20),
        ("num_bytes", 1 << 63),
    ],
)
def test_damaged_record_is_never_returned(tmp_path: Path, column: str, flipped: int) -> None:
    store = small_store(tmp_path)
    store.put(key(1), views(bytes(1000)))
    store._arena.tables[column][0] ^= flipped  # type: ignore[operator]
    assert store.get(key(1)) is None
    assert key(1) not in store
    assert store.num_bytes == 0
    store.check_integrity()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not an arena"),
        (b"something of somebody else" * 400, "not an arena"),
        (LAYOUT.header[:8] + struct.pack("<I", 99) + LAYOUT.header[12:], "format_version is 99"),
        (LAYOUT.header[:20] + b"\xff" + LAYOUT.header[21:], "damaged"),
        (Layout(block_bytes=512, num_blocks=8).header, "8 blocks of 512"),
        (LAYOUT.header, "holds 36 bytes"),
    ],
    ids=["empty", "foreign", "version", "header", "geometry", "truncated"],
)
def test_foreign_arena_is_refused_by_name_and_made_anew_when_asked(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    path = tmp_path / ARENA_NAME
    path.write_bytes(content)
    with pytest.raises(CacheRefused, match=reason) as refusal:
        small_store(tmp_path)
    assert str(path) in str(refusal.value)
    assert path.read_bytes() == content
    store = small_store(tmp_path, recreate=True)
    assert store.put(key(1), views(b"x"))
    store.close()


@pytest.mark.parametrize("offset", range(4096, LAYOUT.data_at, 151))
def test_damaged_tables_are_refused_or_harmless(tmp_path: Path, offset: int) -> None:
    store = small_store(tmp_path)
    contents = {key(n): data(n, 200 + 150 * n) for n in range(5)}
    for name, content in contents.items():
        store.put(name, views(content))
    store.close()
    damage(tmp_path / ARENA_NAME, offset, b"\xa5\x5a\xff")
    named = ARENA_NAME
    try:
        store = small_store(tmp_path)
    except CacheRefused as refusal:
        named = str(refusal)
        store = small_store(tmp_path, recreate=True)
        assert store.stats().num_entries == 0
    assert ARENA_NAME in named
    for name, content in contents.items():
        assert read(store, name) in (None, content)
    store.check_integrity()


def test_made_anew_leaves_the_other_process_its_arena(tmp_path: Path) -> None:
    old = small_store(tmp_path)
    old.put(key(1), views(b"kept"))
    with (tmp_path / ARENA_NAME).open("r+b") as file:
        file.write(b"\0")
    new = small_store(tmp_path, recreate=True)
    assert key(1) not in new
    assert read(old, key(1)) == b"kept"
    new.put(key(2), views(b"new"))
    assert key(2) not in old


def test_too_many_members_are_refused(tmp_path: Path) -> None:
    stores = [small_store(tmp_path) for _ in range(16)]
    with pytest.raises(CacheRefused, match="16 processes"):
        small_store(tmp_path)
    stores[3].close()
    small_store(tmp_path).close()


def test_half_changed_tables_are_recovered(tmp_path: Path) -> None:
    """An exception inside the bookkeeping stands for a death at that point."""
    store, other = small_store(tmp_path), small_store(tmp_path)
    for number in range(4):
        store.put(key(number), views(data(number, 300)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store._directory._blocks, "free", None)
        with pytest.raises(TypeError):
            store.remove(key(1))
    other.check_integrity()
    assert key(1) not in other
    assert [read(other, key(n)) for n in (0, 2, 3)] == [data(n, 300) for n in (0, 2, 3)]
    assert other.num_bytes == 6 * BLOCK


def test_check_integrity_finds_what_is_wrong() -> None:
    for column, place in (("owner", 5), ("state", 9), ("pins", (0, 7)), ("index", 3), ("key", 0)):
        store = small_store()
        store.put(key(1), views(bytes(300)))
        store.check_integrity()
        store._arena.tables[column][place] += np.uint8(2)  # type: ignore[operator]
        with pytest.raises(IntegrityError):
            store.check_integrity()


class HostStoreModel(RuleBasedStateMachine):
    """Two handles on one arena against a dict, with an exact account of the blocks."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.stores = [small_store(Path(self.folder.name)) for _ in range(2)]
        self.model: dict[bytes, tuple[bytearray, int, int]] = {}
        self.clock = 0
        self.pins: list[tuple[int, bytes, bytearray, Pinned, bool]] = []

    def teardown(self) -> None:
        for _, _, content, pinned, _ in self.pins:
            assert bytes(pinned.view) == content
            pinned.release()
        for store in self.stores:
            store.check_integrity()
            store.close()
        self.folder.cleanup()

    def blocks(self, content: bytearray) -> int:
        return max(1, -(-len(content) // BLOCK))

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def used(self) -> int:
        doomed = {id(c): c for _, _, c, _, live in self.pins if not live}
        return sum(self.blocks(c) for c, _, _ in self.model.values()) + sum(
            self.blocks(c) for c in doomed.values()
        )

    @rule(
        which=st.integers(0, 1),
        number=st.integers(0, 9),
        size=st.integers(0, 6 * BLOCK),
        value=st.integers(-1, 1),
    )
    def put(self, which: int, number: int, size: int, value: int) -> None:
        name, content = key(number), bytearray(data(number * 10_000 + size, size))
        stored = self.stores[which].put(name, views(content, size // 2), value=value)
        if name in self.model:
            assert stored
            old, old_value, _ = self.model[name]
            self.model[name] = (old, old_value, self.tick())
            return
        pinned = {name for _, name, _, _, live in self.pins if live}
        order = sorted((n for n in self.model if n not in pinned), key=lambda n: self.model[n][1:])
        loose = sum(self.blocks(self.model[n][0]) for n in order)
        missing = self.used() + self.blocks(content) - LAYOUT.num_blocks
        assert stored == (missing <= loose)
        if stored:
            while self.used() + self.blocks(content) > LAYOUT.num_blocks:
                del self.model[order.pop(0)]
            self.model[name] = (content, value, self.tick())

    @rule(which=st.integers(0, 1), number=st.integers(0, 9), keep=st.booleans())
    def get(self, which: int, number: int, keep: bool) -> None:
        name = key(number)
        pinned = self.stores[which].get(name)
        assert (pinned is not None) == (name in self.model)
        if pinned is None:
            return
        content, value, _ = self.model[name]
        self.model[name] = (content, value, self.tick())
        assert bytes(pinned.view) == content
        if keep:
            self.pins.append((which, name, content, pinned, True))
        else:
            pinned.release()

    @precondition(lambda self: self.pins)
    @rule(choice=st.integers(0, 99))
    def release(self, choice: int) -> None:
        _, _, content, pinned, _ = self.pins.pop(choice % len(self.pins))
        assert bytes(pinned.view) == content
        pinned.release()

    @rule(which=st.integers(0, 1), number=st.integers(0, 9), value=st.none() | st.integers(-1, 1))
    def touch(self, which: int, number: int, value: int | None) -> None:
        name = key(number)
        assert self.stores[which].touch(name, value=value) == (name in self.model)
        if name in self.model:
            content, old, _ = self.model[name]
            self.model[name] = (content, old if value is None else value, self.tick())

    @rule(which=st.integers(0, 1), number=st.integers(0, 9))
    def remove(self, which: int, number: int) -> None:
        name = key(number)
        assert self.stores[which].remove(name) == (self.model.pop(name, None) is not None)
        self.doom({name})

    @rule(which=st.integers(0, 1))
    def flush(self, which: int) -> None:
        assert self.stores[which].flush() == len(self.model)
        self.doom(set(self.model))
        self.model.clear()

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        self.stores[which].close()
        self.pins = [pin for pin in self.pins if pin[0] != which]
        self.stores[which] = small_store(Path(self.folder.name))

    def doom(self, names: set[bytes]) -> None:
        self.pins = [(w, n, c, p, live and n not in names) for w, n, c, p, live in self.pins]

    @invariant()
    def counts_are_exact(self) -> None:
        for store in self.stores:
            store.check_integrity()
            assert store.num_bytes == self.used() * BLOCK
            assert store.stats().num_entries == len(self.model)
            assert all((key(n) in store) == (key(n) in self.model) for n in range(10))


TestHostStoreModel = pytest.mark.timeout(600)(HostStoreModel.TestCase)
TestHostStoreModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
