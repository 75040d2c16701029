"""What a process knows of the files in a disk store, and in which order they go.

The folder is the truth; this is a copy of it, brought up to date by looking at the folders
that changed. Last use is the file's modification time, so it survives a restart and is seen by
another process.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from trnrt_engine.cache.disk_format import NUM_FANS, fan_of


@dataclass(slots=True)
class DiskFile:
    """One entry: size of the whole file, eviction value, last use in ns of the wall clock."""

    key: bytes
    size: int
    value: int
    last_use_ns: int


class DiskIndex:
    """Files by key, their total size, and an eviction order by (value, last use)."""

    def __init__(self) -> None:
        self._files: dict[bytes, DiskFile] = {}
        self._fans: list[set[bytes]] = [set() for _ in range(NUM_FANS)]
        self._heap: list[tuple[int, int, bytes]] = []
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, key: bytes) -> bool:
        return key in self._files

    def __iter__(self) -> Iterator[DiskFile]:
        return iter(list(self._files.values()))

    def get(self, key: bytes) -> DiskFile | None:
        """Look a file up."""
        return self._files.get(key)

    def of_fan(self, fan: int) -> list[DiskFile]:
        """List the files of one folder."""
        return [self._files[key] for key in self._fans[fan]]

    def add(self, file: DiskFile) -> None:
        """Add a file; one with the same key is replaced."""
        self.drop(file.key)
        self._files[file.key] = file
        self._fans[fan_of(file.key)].add(file.key)
        self.num_bytes += file.size
        self._push(file)

    def drop(self, key: bytes) -> bool:
        """Forget a file; False when it is not known."""
        file = self._files.pop(key, None)
        if file is None:
            return False
        self._fans[fan_of(key)].discard(key)
        self.num_bytes -= file.size
        return True

    def use(self, key: bytes, *, last_use_ns: int, value: int | None = None) -> None:
        """Note a use, and a new value if given."""
        file = self._files.get(key)
        if file is None:
            return
        file.last_use_ns = max(file.last_use_ns, last_use_ns)
        if value is not None and value != file.value:
            file.value = value
            self._push(file)

    def first_to_go(self) -> DiskFile | None:
        """Look at the file that is evicted next, as far as uses are known here."""
        while self._heap:
            value, last_use_ns, key = self._heap[0]
            file = self._files.get(key)
            if file is not None and (file.value, file.last_use_ns) == (value, last_use_ns):
                return file
            heapq.heappop(self._heap)
            # Used since it was pushed, or its value fell and a better place was pushed then.
            if file is not None and (file.value, file.last_use_ns) > (value, last_use_ns):
                self._push(file)
        return None

    def _push(self, file: DiskFile) -> None:
        if len(self._heap) > 4 * len(self._files) + 64:
            self._heap = [(f.value, f.last_use_ns, f.key) for f in self._files.values()]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (file.value, file.last_use_ns, file.key))
