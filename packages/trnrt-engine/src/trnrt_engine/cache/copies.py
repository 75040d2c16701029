"""A thread that moves bytes to and from stores while the engine goes on.

The owner submits jobs and polls for what is done. Every accepted job is reported exactly once,
also when it failed or was cancelled; until then its buffers belong to the queue: a source must
not change, unless its copy was cancelled and what it left is dropped; a destination must not be
used.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from trnrt_engine.cache.bytestore import CopyStore, Pinned

logger = logging.getLogger(__name__)


class CopyKind(StrEnum):
    """Which way the bytes go."""

    PUT = "put"
    GET = "get"


class CopyStatus(StrEnum):
    """How a job ended."""

    DONE = "done"
    MISSING = "missing"
    """A get found no entry, or a damaged one."""
    REFUSED = "refused"
    """A put found no room."""
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyDone:
    """The end of one job.

    Fields:
        num_bytes: what was copied; 0 unless DONE.
        pinned: for a get without buffers that is DONE; the owner must release it.
        error: text, for FAILED.
        elapsed_s: from the job's start in the thread.
    """

    ticket: int
    kind: CopyKind
    key: bytes
    status: CopyStatus
    num_bytes: int = 0
    pinned: Pinned | None = None
    error: str | None = None
    elapsed_s: float = 0.0


class Copies(Protocol):
    """Moves entries to and from stores while others go on; methods as those of `CopyQueue`."""

    def submit_put(
        self, store: CopyStore, key: bytes, chunks: Sequence[memoryview], *, value: int = 0
    ) -> int | None: ...

    def submit_get(
        self,
        store: CopyStore,
        key: bytes,
        *,
        into: Sequence[memoryview] | None = None,
        num_bytes: int = 0,
    ) -> int | None: ...

    def cancel(self, ticket: int) -> bool: ...

    def poll(self) -> list[CopyDone]: ...

    def wait(self, timeout_s: float) -> bool: ...

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Job:
    ticket: int
    kind: CopyKind
    store: CopyStore
    key: bytes
    num_bytes: int
    chunks: Sequence[memoryview] | None
    value: int = 0
    is_cancelled: bool = False

    def done(self, status: CopyStatus, **fields: object) -> CopyDone:
        return CopyDone(ticket=self.ticket, kind=self.kind, key=self.key, status=status, **fields)  # type: ignore[arg-type]


class CopyQueue:
    """One thread, jobs in order.

    Args:
        max_bytes_in_flight: bytes of all jobs not yet reported; a job that would exceed it is
            not accepted, unless it is alone.
        notify: called from the thread when a job it ran can be polled; must not block.
        delay: called in the thread before each job; for tests.
    """

    def __init__(
        self,
        *,
        max_bytes_in_flight: int,
        notify: Callable[[], None] | None = None,
        delay: Callable[[], None] | None = None,
    ) -> None:
        self._max_bytes = max_bytes_in_flight
        self._notify = notify
        self._delay = delay
        self._tickets = itertools.count(1)
        self._waiting: deque[_Job] = deque()
        self._running: _Job | None = None
        self._done: list[tuple[CopyDone, int]] = []
        self._bytes_in_flight = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="cache-copies", daemon=True)
        self._thread.start()

    @property
    def bytes_in_flight(self) -> int:
        """Bytes of the jobs accepted and not yet reported."""
        return self._bytes_in_flight

    def submit_put(
        self, store: CopyStore, key: bytes, chunks: Sequence[memoryview], *, value: int = 0
    ) -> int | None:
        """Store `chunks`; returns a ticket, or None when too much is in flight or closed."""
        num_bytes = sum(memoryview(chunk).nbytes for chunk in chunks)
        return self._submit(CopyKind.PUT, store, key, num_bytes, chunks, value)

    def submit_get(
        self,
        store: CopyStore,
        key: bytes,
        *,
        into: Sequence[memoryview] | None = None,
        num_bytes: int = 0,
    ) -> int | None:
        """Fetch an entry; returns a ticket, or None when too much is in flight or closed.

        Args:
            store: where it lies.
            key: its key.
            into: buffers to fill, as long as the entry together; without them the result
                carries the pinned entry.
            num_bytes: the length expected, counted as in flight when there are no buffers.
        """
        if into is not None:
            num_bytes = sum(memoryview(buffer).nbytes for buffer in into)
        return self._submit(CopyKind.GET, store, key, num_bytes, into, 0)

    def cancel(self, ticket: int) -> bool:
        """Ask that a job not take effect; False when it has ended or is not known.

        It is reported CANCELLED: at once if it had not started, else when the thread is through
        with it (a put may have stored its entry, buffers of a get may be partly filled).
        """
        with self._changed:
            for job in self._waiting:
                if job.ticket == ticket:
                    self._waiting.remove(job)
                    self._finish(job, job.done(CopyStatus.CANCELLED))
                    return True
            if self._running is not None and self._running.ticket == ticket:
                self._running.is_cancelled = True
                return True
        return False

    def poll(self) -> list[CopyDone]:
        """Take what has ended since the last call, in that order."""
        with self._changed:
            ended, self._done = self._done, []
            self._bytes_in_flight -= sum(num_bytes for _, num_bytes in ended)
        return [done for done, _ in ended]

    def wait(self, timeout_s: float) -> bool:
        """Wait until something can be polled; False after `timeout_s`."""
        with self._changed:
            return self._changed.wait_for(lambda: bool(self._done), timeout_s)

    def close(self) -> None:
        """Cancel what waits, finish the running job, end the thread.

        `poll` still reports every job; pinned entries in it are released already and dropped.
        """
        with self._changed:
            self._is_closed = True
            while self._waiting:
                job = self._waiting.popleft()
                self._finish(job, job.done(CopyStatus.CANCELLED))
            if self._running is not None:
                self._running.is_cancelled = True
            self._changed.notify_all()
        self._thread.join()
        with self._changed:
            for place, (done, num_bytes) in enumerate(self._done):
                if done.pinned is not None:
                    done.pinned.release()
                    cancelled = CopyDone(
                        ticket=done.ticket,
                        kind=done.kind,
                        key=done.key,
                        status=CopyStatus.CANCELLED,
                    )
                    self._done[place] = (cancelled, num_bytes)

    def _submit(
        self,
        kind: CopyKind,
        store: CopyStore,
        key: bytes,
        num_bytes: int,
        chunks: Sequence[memoryview] | None,
        value: int,
    ) -> int | None:
        with self._changed:
            total = self._bytes_in_flight + num_bytes
            is_alone = self._running is None and not self._waiting and not self._done
            if self._is_closed or (total > self._max_bytes and not is_alone):
                return None
            job = _Job(next(self._tickets), kind, store, key, num_bytes, chunks, value)
            self._bytes_in_flight = total
            self._waiting.append(job)
            self._changed.notify_all()
            return job.ticket

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                job = self._running = self._waiting.popleft()
            done = self._perform(job)
            with self._changed:
                self._running = None
                if job.is_cancelled and done.status is not CopyStatus.CANCELLED:
                    if done.pinned is not None:
                        done.pinned.release()
                    done = job.done(CopyStatus.CANCELLED, elapsed_s=done.elapsed_s)
                self._finish(job, done)
            self._tell()

    def _perform(self, job: _Job) -> CopyDone:
        """Run one job; whatever goes wrong is its result, the thread goes on."""
        started_s = time.perf_counter()
        try:
            if self._delay is not None:
                self._delay()
            done = _copy(job)
        except Exception as error:
            logger.warning("cache copy failed kind=%s: %r", job.kind, error)
            done = job.done(CopyStatus.FAILED, error=f"{type(error).__name__}: {error}")
        return job.done(
            done.status,
            num_bytes=done.num_bytes,
            pinned=done.pinned,
            error=done.error,
            elapsed_s=time.perf_counter() - started_s,
        )

    def _finish(self, job: _Job, done: CopyDone) -> None:
        """Queue a result; call with the condition held."""
        self._done.append((done, job.num_bytes))
        self._changed.notify_all()

    def _tell(self) -> None:
        if self._notify is None:
            return
        try:
            self._notify()
        except Exception as error:  # the owner may be going away; the jobs still end
            logger.warning("cache copies cannot notify: %r", error)


def _copy(job: _Job) -> CopyDone:
    if job.is_cancelled:
        return job.done(CopyStatus.CANCELLED)
    if job.kind is CopyKind.PUT:
        is_stored = job.store.put(job.key, job.chunks or (), value=job.value)
        if not is_stored:
            return job.done(CopyStatus.REFUSED)
        return job.done(CopyStatus.DONE, num_bytes=job.num_bytes)
    pinned = job.store.get(job.key)
    if pinned is None:
        return job.done(CopyStatus.MISSING)
    if job.chunks is None:
        return job.done(CopyStatus.DONE, num_bytes=pinned.num_bytes, pinned=pinned)
    with pinned:
        pinned.copy_into(job.chunks)
    return job.done(CopyStatus.DONE, num_bytes=job.num_bytes)
