"""The store in files: what survives, what is refused, what is left alone."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from trnrt_engine.cache import disk_store
from trnrt_engine.cache.bytestore import CacheRefused
from trnrt_engine.cache.disk_format import HEADER_BYTES, SUFFIX, TEMPORARY_SUFFIX, Header, path_of
from trnrt_engine.cache.disk_store import DiskStore


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def data(number: int, size: int) -> bytes:
    return np.random.default_rng(number).bytes(size)


def views(content: bytes, *cuts: int) -> list[memoryview]:
    edges = [0, *cuts, len(content)]
    return [memoryview(content)[a:b] for a, b in pairwise(edges)]


def read(store: DiskStore, name: bytes) -> bytes | None:
    pinned = store.get(name)
    if pinned is None:
        return None
    with pinned:
        assert pinned.view.readonly
        return bytes(pinned.view)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_store.os, "fsync", lambda fd: None)


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    return DiskStore(tmp_path / "cache", 10_000)


def test_payload_is_synced_before_it_gets_its_name(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    replace = os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: order.append("sync"))
    monkeypatch.setattr(os, "replace", lambda *a: (order.append("rename"), replace(*a)))
    store.put(key(1), views(b"x"))
    assert order == ["sync", "rename"]


@pytest.mark.parametrize("size", [0, 1, 1000, 9000])
def test_bytes_survive_a_restart(tmp_path: Path, size: int) -> None:
    content = data(1, size)
    store = DiskStore(tmp_path, 10_000)
    assert store.put(key(1), views(content, size // 3))
    assert read(store, key(1)) == content
    assert store.num_bytes == HEADER_BYTES + size
    store.close()
    again = DiskStore(tmp_path, 10_000)
    assert key(1) in again
    assert read(again, key(1)) == content
    assert again.num_bytes == HEADER_BYTES + size
    again.check_integrity()


def test_many_chunks_are_written_whole(tmp_path: Path) -> None:
    content = data(1, 5000)
    store = DiskStore(tmp_path, 10_000)
    assert store.put(key(1), views(content, *range(1, 5000, 3)))
    assert read(store, key(1)) == content


def test_index_is_built_without_reading_payloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = DiskStore(tmp_path, 1 << 20)
    for number in range(20):
        store.put(key(number), views(bytes(5000)))
    store.close()
    num_read = 0
    pread = os.pread

    def counted(fd: int, size: int, offset: int) -> bytes:
        nonlocal num_read
        num_read += size
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    monkeypatch.setattr(os, "preadv", None)
    assert DiskStore(tmp_path, 1 << 20).stats().num_entries == 20
    assert num_read == 20 * HEADER_BYTES


def test_recency_survives_a_restart(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 10_000)
    for number in range(4):
        store.put(key(number), views(bytes(2000)))
    assert read(store, key(0)) is not None
    assert store.touch(key(1))
    store.close()
    again = DiskStore(tmp_path, 10_000)
    assert again.put(key(10), views(bytes(2000)))
    assert [key(n) in again for n in range(4)] == [True, True, False, True]
    assert again.put(key(11), views(bytes(2000)))
    assert [key(n) in again for n in range(4)] == [True, True, False, False]


def test_least_value_goes_first(store: DiskStore) -> None:
    for number, value in ((1, 5), (2, 0), (3, 0), (4, -1)):
        assert store.put(key(number), views(bytes(2000)), value=value)
    store.touch(key(2))
    store.touch(key(1), value=-2)
    gone = []
    for number in (10, 11, 12, 13):
        store.put(key(number), views(bytes(2100)), value=9)
        gone.append({n for n in (1, 2, 3, 4) if key(n) not in store})
    assert gone == [{1}, {1, 4}, {1, 3, 4}, {1, 2, 3, 4}]


def test_smaller_budget_is_kept_at_the_next_start(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 10_000)
    for number in range(4):
        store.put(key(number), views(bytes(2000)))
    store.close()
    again = DiskStore(tmp_path, 5000)
    assert [key(n) in again for n in range(4)] == [False, False, True, True]
    assert not again.put(key(9), views(bytes(5000)))


def test_two_handles_share_folder_budget_and_recency(tmp_path: Path) -> None:
    first, second = DiskStore(tmp_path, 10_000), DiskStore(tmp_path, 10_000)
    for number in range(4):
        store = (first, second)[number % 2]
        assert store.put(key(number), views(data(number, 2000)))
    assert read(first, key(1)) == data(1, 2000)
    second.touch(key(0))
    assert first.put(key(10), views(bytes(2000)))
    assert first.put(key(11), views(bytes(2000)))
    assert [key(n) in second for n in range(4)] == [True, True, False, False]
    for store in (first, second):
        assert store.stats().num_bytes == 4 * (2000 + HEADER_BYTES)
        store.check_integrity()
    assert second.flush() == 4
    assert first.get(key(10)) is None
    assert first.stats().num_entries == 0


def test_damaged_payload_is_named_removed_and_counted(
    store: DiskStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.put(key(1), views(bytes(1000)))
    path = path_of(tmp_path / "cache", key(1))
    content = bytearray(path.read_bytes())
    content[700] ^= 1
    path.write_bytes(content)
    assert store.get(key(1)) is None
    assert not path.exists()
    assert str(path) in warnings_in(caplog)[0]
    assert store.stats().damaged == 1
    assert store.stats().num_bytes == 0
    store.check_integrity()


def test_entry_under_another_key_is_never_returned(store: DiskStore, tmp_path: Path) -> None:
    store.put(key(1), views(b"one"))
    source, target = (path_of(tmp_path / "cache", key(n)) for n in (1, 2))
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(source.read_bytes())
    assert store.get(key(2)) is None
    assert not target.exists()
    assert read(store, key(1)) == b"one"


def whole_file(number: int, size: int = 100) -> bytes:
    return Header(key=key(number), num_bytes=size, value=0, crc=0).pack() + bytes(size)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"x" * 500, "not an entry"),
        (whole_file(1)[:90], "within its header"),
        (whole_file(1)[:-1], "holds 227 bytes instead of 228"),
        (whole_file(1) + b"x", "holds 229 bytes instead of 228"),
        (whole_file(1)[:8] + b"\x09" + whole_file(1)[9:], "format_version is 9"),
        (whole_file(1)[:40] + b"\x09" + whole_file(1)[41:], "header is damaged"),
        (whole_file(2), "holds the entry"),
    ],
    ids=["empty", "foreign", "header-cut", "cut", "long", "version", "header", "key"],
)
def test_bad_file_is_named_skipped_and_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, reason: str
) -> None:
    path = path_of(tmp_path, key(1))
    path.parent.mkdir()
    path.write_bytes(content)
    store = DiskStore(tmp_path, 10_000)
    (message,) = warnings_in(caplog)
    assert str(path) in message
    assert reason in message
    assert not path.exists()
    assert store.stats().num_entries == 0
    assert store.stats().damaged == 1


def test_only_files_with_our_magic_or_suffix_are_deleted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "00").mkdir()
    (tmp_path / "thesis").mkdir()
    keep = [tmp_path / "notes.txt", tmp_path / "00" / "photo.jpg", tmp_path / "thesis" / "a"]
    lose = [tmp_path / "00" / "renamed", tmp_path / ("stray" + SUFFIX)]
    lose.append(tmp_path / "00" / ("half" + TEMPORARY_SUFFIX))
    for path in keep:
        path.write_bytes(b"mine")
    for path in lose:
        path.write_bytes(whole_file(1))
    (tmp_path / "00" / ("link" + SUFFIX)).symlink_to(keep[0])
    store = DiskStore(tmp_path, 10_000)
    store.put(key(1), views(b"x"))
    store.flush()
    store.check_integrity()
    assert all(path.read_bytes() == b"mine" for path in keep)
    assert not any(path.exists() for path in lose)
    text = "\n".join(warnings_in(caplog))
    assert all(str(path) in text for path in [keep[0], keep[1], *lose])


def test_file_being_written_is_left_to_its_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = DiskStore(tmp_path, 10_000)

    def meanwhile(fd: int) -> None:
        DiskStore(tmp_path, 10_000).check_integrity()

    monkeypatch.setattr(os, "fsync", meanwhile)
    assert first.put(key(1), views(b"x"))
    assert read(first, key(1)) == b"x"


def test_something_else_than_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(CacheRefused, match="not a folder"):
        DiskStore(tmp_path / "file", 10_000)


@contextmanager
def largest_file(num_bytes: int) -> Iterator[None]:
    """Let the kernel refuse longer files (EFBIG), as a full disk does in the middle of one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_refused_write_only_stops_storing_and_is_tried_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 0.0
    store = DiskStore(tmp_path, 100_000, retry_s=30, clock=lambda: now_s)
    assert store.put(key(1), views(data(1, 1000)))
    with largest_file(4096):
        assert not store.put(key(2), views(bytes(20_000), 3000))
        assert not store.put(key(3), views(b"small, not tried"))
        now_s = 31
        assert not store.put(key(2), views(bytes(20_000)))
    assert read(store, key(1)) == data(1, 1000)
    assert len(warnings_in(caplog)) == 1
    assert not store.put(key(2), views(bytes(20_000)))
    now_s = 62
    assert store.put(key(2), views(bytes(20_000)))
    assert (store.stats().failures, store.stats().refused) == (2, 4)
    assert not list(tmp_path.rglob("*" + TEMPORARY_SUFFIX))
    store.check_integrity()


FULL_DISK = """
import sys
from pathlib import Path
from trnrt_engine.cache.disk_store import DiskStore
store = DiskStore(Path(sys.argv[1]), 100 << 20, retry_s=0.0)
stored = [store.put(n.to_bytes(16, "big"), [memoryview(bytes([n]) * 200_000)]) for n in range(10)]
assert stored[0] and not all(stored), stored
for n, is_stored in enumerate(stored):
    pinned = store.get(n.to_bytes(16, "big"))
    assert (pinned is not None) == is_stored
    assert pinned is None or pinned.view == bytes([n]) * 200_000
store.check_integrity()
assert store.remove((0).to_bytes(16, "big"))
assert store.put(b"a" * 16, [memoryview(bytes(100_000))])
print(store.stats().failures)
"""


def in_own_mount(script: str, mount: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a mount namespace of its own, after a `mount` command; skip without one."""
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    try:
        subprocess.run([*unshare, "sh", "-c", mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no mount namespace: {error}")
    command = f'{mount} && exec "$0" -c "$1" "$2"'
    folder = mount.split()[-1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [*unshare, "sh", "-c", command, sys.executable, script, folder],
        check=False, capture_output=True, text=True, env=environment,
    )  # fmt: skip


def test_full_disk_only_stops_storing(tmp_path: Path) -> None:
    run = in_own_mount(FULL_DISK, f"mount -t tmpfs -o size=1m none {tmp_path}")
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) > 0


READ_ONLY = """
import sys
from pathlib import Path
from trnrt_engine.cache.disk_store import DiskStore
store = DiskStore(Path(sys.argv[1]), 100_000, retry_s=0.0)
assert store.get(bytes(16)).view == b"kept"
assert store.touch(bytes(16)) and bytes(16) in store
assert not store.put(b"b" * 16, [memoryview(b"new")])
assert not store.put(b"b" * 16, [memoryview(b"new")])
assert not store.remove(bytes(16))
store.check_integrity()
assert DiskStore(Path(sys.argv[1]) / "deeper", 1000).get(bytes(16)) is None
"""


def test_read_only_folder_only_stops_storing(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 10_000)
    store.put(bytes(16), views(b"kept"))
    store.close()
    mount = f"mount --bind {tmp_path} {tmp_path} && mount -o remount,ro,bind {tmp_path}"
    run = in_own_mount(READ_ONLY, mount)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("stores nothing for now") == 2  # one a store


class DiskStoreModel(RuleBasedStateMachine):
    """Two handles on one folder, reopened at will, against a dict."""

    budget = 3000

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.stores = [self.open(), self.open()]
        self.model: dict[bytes, tuple[bytes, int, int]] = {}
        self.clock = 0

    def open(self) -> DiskStore:
        return DiskStore(Path(self.folder.name), self.budget)

    def teardown(self) -> None:
        for store in self.stores:
            store.close()
        self.folder.cleanup()

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def used(self) -> int:
        return sum(HEADER_BYTES + len(content) for content, _, _ in self.model.values())

    @rule(
        which=st.integers(0, 1),
        number=st.integers(0, 9),
        size=st.integers(0, 1200) | st.just(2900),
        value=st.integers(-1, 1),
    )
    def put(self, which: int, number: int, size: int, value: int) -> None:
        name, content = key(number), data(number * 10_000 + size, size)
        stored = self.stores[which].put(name, views(content, size // 2), value=value)
        if name in self.model:
            assert stored
            old, old_value, _ = self.model[name]
            self.model[name] = (old, old_value, self.tick())
            return
        assert stored == (size + HEADER_BYTES <= self.budget)
        if stored:
            while self.used() + size + HEADER_BYTES > self.budget:
                del self.model[min(self.model, key=lambda n: self.model[n][1:])]
            self.model[name] = (content, value, self.tick())

    @rule(which=st.integers(0, 1), number=st.integers(0, 9))
    def get(self, which: int, number: int) -> None:
        name = key(number)
        found = read(self.stores[which], name)
        if name not in self.model:
            assert found is None
            return
        content, value, _ = self.model[name]
        assert found == content
        self.model[name] = (content, value, self.tick())

    @rule(which=st.integers(0, 1), number=st.integers(0, 9))
    def touch(self, which: int, number: int) -> None:
        name = key(number)
        assert self.stores[which].touch(name) == (name in self.model)
        if name in self.model:
            self.model[name] = (*self.model[name][:2], self.tick())

    @rule(which=st.integers(0, 1), number=st.integers(0, 9))
    def remove(self, which: int, number: int) -> None:
        name = key(number)
        assert self.stores[which].remove(name) == (self.model.pop(name, None) is not None)

    @rule(which=st.integers(0, 1))
    def flush(self, which: int) -> None:
        assert self.stores[which].flush() == len(self.model)
        self.model.clear()

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        self.stores[which].close()
        self.stores[which] = self.open()

    @rule(number=st.integers(0, 9), place=st.integers(0, 2000), cut=st.booleans())
    def damage(self, number: int, place: int, cut: bool) -> None:
        path = path_of(Path(self.folder.name), key(number))
        if key(number) not in self.model:
            return
        content = bytearray(path.read_bytes())
        used = path.stat().st_mtime_ns
        if cut:
            del content[place % len(content) :]
        else:
            content[place % (len(content) if place % 3 else 104)] ^= 1 << place % 8
        path.write_bytes(content)
        os.utime(path, ns=(used, used))
        is_padding = not cut and content[:104] == path.read_bytes()[:104]
        found = read(self.stores[0], key(number))
        if found is not None:
            assert is_padding  # the rest of the header says nothing
            assert found == self.model[key(number)][0]
            self.model[key(number)] = (*self.model[key(number)][:2], self.tick())
        else:
            del self.model[key(number)]

    @invariant()
    def counts_are_exact(self) -> None:
        for store in self.stores:
            store.check_integrity()
            assert store.stats().num_entries == len(self.model)
            assert store.num_bytes == self.used() <= self.budget
        assert all((key(n) in store) == (key(n) in self.model) for n in range(10))


TestDiskStoreModel = pytest.mark.timeout(600)(DiskStoreModel.TestCase)
TestDiskStoreModel.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
