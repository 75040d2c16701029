"""Processes that share a byte store and die: what the survivor finds.

    python -m support.store_crashes host|disk lines|moments FOLDER STEP_OR_SECONDS

`lines`: a victim is killed at the Nth line it executes in the cache package, for every N (in
steps). `moments`: victims are killed at random times. After each death the survivor, which has
entries pinned all along, proves its own entries and the whole store. Run as a script of its
own, because it forks.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from trnrt_engine.cache import arena
from trnrt_engine.cache.arena import Layout
from trnrt_engine.cache.bytestore import ByteStore
from trnrt_engine.cache.disk_store import DiskStore
from trnrt_engine.cache.host_store import HostStore

LAYOUT = Layout(block_bytes=256, num_blocks=48)
CACHE_FOLDER = str(Path(arena.__file__).parent)
NUM_OWN = 4
OWN_VALUE = 100


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def content(number: int) -> bytes:
    return random.Random(number).randbytes(200 + 331 * (number % 7))


def open_store(kind: str, folder: Path) -> ByteStore:
    if kind == "host":
        return HostStore(folder, budget_bytes=LAYOUT.file_bytes, block_bytes=256)
    return DiskStore(folder, 48 * 256)


def put(store: ByteStore, number: int, value: int = 0) -> bool:
    return store.put(key(number), [memoryview(content(number))], value=value)


def check_value(store: ByteStore, number: int) -> bool:
    pinned = store.get(key(number))
    if pinned is None:
        return False
    with pinned:
        if pinned.view != content(number):
            raise AssertionError(f"entry {number} has other bytes")
    return True


def one_of_each(kind: str, folder: Path) -> None:
    """Do everything once: evictions, a scattered entry, pins, removal of a pinned entry."""
    store = open_store(kind, folder)
    for number in range(100, 112):
        put(store, number)
    pinned = store.get(key(111))
    store.remove(key(109))
    store.remove(key(111))
    put(store, 113)
    store.touch(key(113), value=1)
    check_value(store, 113)
    if pinned is not None:
        pinned.release()
    put(store, 115)
    store.get(key(115))
    store.close()


def anything(kind: str, folder: Path) -> None:
    """Use the store at random until killed."""
    store, choose = open_store(kind, folder), random.Random(os.getpid())
    pins: list[Any] = []
    while True:
        number = choose.randrange(100, 140)
        action = choose.random()
        if action < 0.5:
            put(store, number, choose.randrange(3))
        elif action < 0.8:
            pins.append(store.get(key(number)))
        elif action < 0.9:
            store.remove(key(number))
        else:
            store.check_integrity()
        while len(pins) > 3:
            pinned = pins.pop(0)
            if pinned is not None:
                pinned.release()


def die_at_line(count: int) -> None:
    """Kill this process when it has executed `count` lines of the cache package."""
    left = count

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(CACHE_FOLDER):
            return None
        if event == "line":
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def start(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    except BaseException as error:
        print(f"victim: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


class OnlyExpected(logging.Handler):
    """Fails at a warning that a death does not explain: nothing published is ever damaged."""

    expected = ("left half written", "left half changed")

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if not any(text in message for text in self.expected):
            raise AssertionError(message)


class Survivor:
    """Holds the store open, with entries of its own, all pinned.

    Without a pin even the most valuable may have to go: what the others pin and write at one time
    can be the whole store.
    """

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.store = open_store(kind, folder)
        for number in range(NUM_OWN):
            if not put(self.store, number, OWN_VALUE):
                raise AssertionError("no room for the own entries")
        self.pins = [self.store.get(key(number)) for number in range(NUM_OWN)]

    def prove(self) -> None:
        """Check everything after a death."""
        self.store.check_integrity()
        for number in range(NUM_OWN):
            if not check_value(self.store, number):
                raise AssertionError(f"own entry {number} is gone")
        for number, pinned in enumerate(self.pins):
            if pinned is None or pinned.view != content(number):
                raise AssertionError("a pinned entry changed")
        for number in range(100, 140):
            check_value(self.store, number)
        stats = self.store.stats()
        if stats.damaged and self.kind == "host":
            raise AssertionError(f"{stats.damaged} damaged entries were found")
        if self.kind == "host":
            self._prove_nothing_is_lost(stats.num_entries)

    def _prove_nothing_is_lost(self, num_entries: int) -> None:
        """With all foreign entries gone, all but the own blocks can be used."""
        for number in range(100, 140):
            self.store.remove(key(number))
        own = sum(-(-len(content(number)) // 256) for number in range(NUM_OWN))
        if self.store.num_bytes != own * 256:
            raise AssertionError(f"{self.store.num_bytes} bytes in use instead of {own * 256}")
        rest = bytes((48 - own) * 256)
        if not self.store.put(key(99), [memoryview(rest)]) or not self.store.remove(key(99)):
            raise AssertionError("the free space cannot be used")


def kill_at_lines(kind: str, folder: Path, step: int) -> int:
    """Kill at line 1, 1 + step, ... until a victim lives to its end; count the deaths."""
    survivor, num_deaths = Survivor(kind, folder), 0
    while True:
        line = 1 + num_deaths * step

        def work(line: int = line) -> None:
            die_at_line(line)
            one_of_each(kind, folder)
            sys.settrace(None)

        _, status = os.waitpid(start(work), 0)
        survivor.prove()
        if os.WIFEXITED(status):
            if os.WEXITSTATUS(status):
                raise AssertionError(f"the victim failed at line {line}")
            return num_deaths
        num_deaths += 1


def kill_at_moments(kind: str, folder: Path, seconds: float) -> int:
    """Keep two processes busy and kill one of them again and again; count the deaths."""
    survivor, choose, num_deaths = Survivor(kind, folder), random.Random(7), 0
    victims = [start(lambda: anything(kind, folder)) for _ in range(2)]
    end_s = time.monotonic() + seconds
    try:
        while time.monotonic() < end_s:
            time.sleep(choose.uniform(0.0, 0.06))
            place = choose.randrange(2)
            os.kill(victims[place], signal.SIGKILL)
            _, status = os.waitpid(victims[place], 0)
            if not os.WIFSIGNALED(status):
                raise AssertionError("a victim ended by itself")
            num_deaths += 1
            victims[place] = start(lambda: anything(kind, folder))
            for number in range(NUM_OWN):
                if not check_value(survivor.store, number):
                    raise AssertionError(f"own entry {number} is gone")
            survivor.store.check_integrity()
    finally:
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    survivor.prove()
    return num_deaths


def main() -> None:
    kind, how, folder, amount = sys.argv[1:]
    logging.getLogger("trnrt_engine").addHandler(OnlyExpected())
    if how == "lines":
        print(kill_at_lines(kind, Path(folder), int(amount)))
    else:
        print(kill_at_moments(kind, Path(folder), float(amount)))


if __name__ == "__main__":
    main()
