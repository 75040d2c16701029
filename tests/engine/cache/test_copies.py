"""The copy thread: every job ends once, whatever happens to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from trnrt_engine.cache.copies import CopyDone, CopyKind, CopyQueue, CopyStatus
from trnrt_engine.cache.host_store import HostStore

WAIT_S = 60.0


class Gate:
    """A delay that a test opens by hand."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.reached = threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self.is_open.wait(WAIT_S)


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def views(content: bytes) -> list[memoryview]:
    return [memoryview(content)]


def collect(queue: CopyQueue, count: int) -> list[CopyDone]:
    ended: list[CopyDone] = []
    while len(ended) < count:
        assert queue.wait(WAIT_S)
        ended += queue.poll()
    return ended


@pytest.fixture
def store() -> HostStore:
    return HostStore(None, budget_bytes=1 << 20, block_bytes=4096)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def queue(gate: Gate) -> Iterator[CopyQueue]:
    queue = CopyQueue(max_bytes_in_flight=1000, delay=gate)
    yield queue
    gate.is_open.set()
    queue.close()


def test_put_and_get_come_back_in_order(store: HostStore) -> None:
    told = threading.Semaphore(0)
    queue = CopyQueue(max_bytes_in_flight=1 << 21, notify=told.release)
    buffers = [bytearray(2), bytearray(3)]
    tickets = [
        queue.submit_put(store, key(1), views(b"hello"), value=3),
        queue.submit_get(store, key(1), into=[memoryview(buffer) for buffer in buffers]),
        queue.submit_get(store, key(1), num_bytes=5),
        queue.submit_get(store, key(2)),
        queue.submit_put(store, key(3), views(bytes(1 << 20))),
    ]
    ended = collect(queue, 5)
    assert [done.ticket for done in ended] == tickets
    assert [done.status for done in ended] == ["done", "done", "done", "missing", "refused"]
    assert [done.num_bytes for done in ended] == [5, 5, 5, 0, 0]
    assert buffers == [b"he", b"llo"]
    pinned = ended[2].pinned
    assert pinned is not None
    assert pinned.view == b"hello"
    pinned.release()
    assert all(told.acquire(timeout=WAIT_S) for _ in range(5))
    assert queue.bytes_in_flight == 0
    queue.close()


def test_failure_is_a_result_and_the_thread_goes_on(store: HostStore) -> None:
    queue = CopyQueue(max_bytes_in_flight=1000)
    store.put(key(1), views(b"12345"))
    queue.submit_get(store, key(1), into=[memoryview(bytearray(4))])
    queue.submit_put(store, b"short", views(b"x"))
    queue.submit_put(store, key(2), views(b"x"))
    ended = collect(queue, 3)
    assert [done.status for done in ended] == ["failed", "failed", "done"]
    assert "5 bytes into buffers of 4" in (ended[0].error or "")
    store.flush()
    assert store.num_bytes == 0  # the failed get left no pin
    queue.close()


def test_bytes_in_flight_are_bounded_until_polled(
    store: HostStore, queue: CopyQueue, gate: Gate
) -> None:
    assert queue.submit_put(store, key(1), views(bytes(600)))
    assert queue.submit_put(store, key(2), views(bytes(401))) is None
    assert queue.submit_put(store, key(2), views(bytes(400)))
    gate.is_open.set()
    assert queue.wait(WAIT_S)
    assert queue.bytes_in_flight == 1000
    collect(queue, 2)
    assert queue.bytes_in_flight == 0
    assert queue.submit_put(store, key(3), views(bytes(5000)))  # alone: else it could never go
    assert collect(queue, 1)[0].status is CopyStatus.DONE


def test_waiting_job_is_cancelled_at_once(store: HostStore, queue: CopyQueue, gate: Gate) -> None:
    queue.submit_put(store, key(1), views(b"1"))
    assert gate.reached.wait(WAIT_S)
    ticket = queue.submit_put(store, key(2), views(b"2"))
    assert ticket is not None
    assert queue.cancel(ticket)
    assert not queue.cancel(ticket)
    (done,) = queue.poll()
    assert (done.ticket, done.kind, done.status) == (ticket, CopyKind.PUT, CopyStatus.CANCELLED)
    gate.is_open.set()
    assert collect(queue, 1)[0].status is CopyStatus.DONE
    assert key(2) not in store


def test_running_get_is_cancelled_without_a_pin(
    store: HostStore, queue: CopyQueue, gate: Gate
) -> None:
    store.put(key(1), views(b"x"))
    ticket = queue.submit_get(store, key(1))
    assert ticket is not None
    assert gate.reached.wait(WAIT_S)
    assert queue.cancel(ticket)
    assert queue.poll() == []
    gate.is_open.set()
    (done,) = collect(queue, 1)
    assert (done.status, done.pinned) == (CopyStatus.CANCELLED, None)
    assert not queue.cancel(ticket)
    store.flush()
    assert store.num_bytes == 0


def test_close_ends_every_job(store: HostStore, queue: CopyQueue, gate: Gate) -> None:
    store.put(key(1), views(b"x"))
    open_queue = CopyQueue(max_bytes_in_flight=1000)
    open_queue.submit_get(store, key(1))
    assert open_queue.wait(WAIT_S)
    open_queue.close()
    (done,) = open_queue.poll()
    assert (done.status, done.pinned) == (CopyStatus.CANCELLED, None)

    tickets = [queue.submit_get(store, key(1)) for _ in range(3)]
    assert gate.reached.wait(WAIT_S)
    closer = threading.Thread(target=queue.close)
    closer.start()
    gate.is_open.set()
    closer.join(WAIT_S)
    assert not closer.is_alive()
    ended = queue.poll()
    assert sorted(done.ticket for done in ended) == tickets
    assert {done.status for done in ended} == {CopyStatus.CANCELLED}
    assert queue.submit_get(store, key(1)) is None
    assert queue.bytes_in_flight == 0
    store.flush()
    assert store.num_bytes == 0


def test_notify_that_raises_stops_nothing(store: HostStore) -> None:
    def fail() -> None:
        raise RuntimeError("loop is closed")

    queue = CopyQueue(max_bytes_in_flight=1000, notify=fail)
    for number in range(3):
        queue.submit_put(store, key(number), views(b"x"))
    assert {done.status for done in collect(queue, 3)} == {CopyStatus.DONE}
    queue.close()
