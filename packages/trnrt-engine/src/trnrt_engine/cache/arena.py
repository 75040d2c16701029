"""The memory of a host store: one mapped file, or private memory, and where what lies in it.

    page 0           header (fixed once written), then a few counters
    tables           one word per block, the key index, one record per entry, pins
    blocks           the payload, in blocks of `block_bytes`

A new file is all zeros behind its header, which is an empty store. Its space is reserved when
it is made, so a full file system is an error then and not a fatal signal at some later write.
The format version is that of this layout and says nothing about what the entries mean.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from trnrt_engine.cache.bytestore import MAX_KEY_BYTES, CacheRefused

FORMAT_VERSION = 1
MAX_MEMBERS = 16
ARENA_NAME = "arena.trnrt-host"

_MAGIC = b"TRNRTHST"
_HEADER = struct.Struct("<8sIIQQ")  # magic, version, members, block_bytes, num_blocks
_CRC = struct.Struct("<I")
_HEADER_BYTES = 4096
_WORDS_AT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Sizes and offsets of an arena; a function of two numbers."""

    block_bytes: int
    num_blocks: int

    @property
    def index_size(self) -> int:
        """Cells of the key index: a power of two, at most half of them used."""
        return 1 << (2 * self.num_blocks - 1).bit_length()

    @property
    def columns(self) -> tuple[tuple[str, type[np.generic], tuple[int, ...]], ...]:
        """Name, element type and shape of each table, in file order."""
        num = self.num_blocks
        return (
            ("owner", np.uint32, (num,)),
            ("index", np.uint32, (self.index_size,)),
            ("state", np.uint32, (num,)),
            ("key_bytes", np.uint32, (num,)),
            ("crc", np.uint32, (num,)),
            ("member", np.uint32, (num,)),
            ("num_bytes", np.uint64, (num,)),
            ("value", np.int64, (num,)),
            ("last_use", np.uint64, (num,)),
            ("key", np.uint8, (num, MAX_KEY_BYTES)),
            ("pins", np.uint16, (MAX_MEMBERS, num)),
        )

    @property
    def data_at(self) -> int:
        """Offset of the first block, a multiple of the memory page."""
        offset = _HEADER_BYTES
        for _, dtype, shape in self.columns:
            offset += _aligned(int(np.prod(shape)) * np.dtype(dtype).itemsize, 64)
        return _aligned(offset, mmap.PAGESIZE)

    @property
    def file_bytes(self) -> int:
        """Size of the whole arena."""
        return self.data_at + self.num_blocks * self.block_bytes

    @property
    def header(self) -> bytes:
        """The fixed part of page 0."""
        fields = (_MAGIC, FORMAT_VERSION, MAX_MEMBERS, self.block_bytes, self.num_blocks)
        packed = _HEADER.pack(*fields)
        return packed + _CRC.pack(zlib.crc32(packed))


def layout_within(budget_bytes: int, *, block_bytes: int) -> Layout:
    """Plan the largest arena of at most `budget_bytes`, tables included.

    Raises:
        ValueError: no block fits, or the block size is no multiple of 64.
    """
    if block_bytes < 64 or block_bytes % 64:
        raise ValueError(f"block_bytes is {block_bytes}; it must be a positive multiple of 64")
    num_blocks = budget_bytes // block_bytes
    while num_blocks > 0:
        layout = Layout(block_bytes=block_bytes, num_blocks=num_blocks)
        excess = layout.file_bytes - budget_bytes
        if excess <= 0:
            return layout
        # A block less also saves at most its share of the tables: never overshoots.
        num_blocks -= max(1, excess // (2 * block_bytes + 512))
    raise ValueError(
        f"a budget of {budget_bytes} bytes holds no block of {block_bytes} beside its tables"
    )


class Arena:
    """The mapped memory: `words`, one array per table, and the bytes of the blocks."""

    def __init__(self, layout: Layout, memory: mmap.mmap) -> None:
        self.layout = layout
        self._memory = memory
        self._bytes = memoryview(memory)
        self.words: NDArray[np.uint64] = np.frombuffer(
            memory, np.uint64, count=8 + MAX_MEMBERS, offset=_WORDS_AT
        )
        self.tables: dict[str, NDArray[np.generic]] = {}
        offset = _HEADER_BYTES
        for name, dtype, shape in layout.columns:
            count = int(np.prod(shape))
            table = np.frombuffer(memory, dtype, count=count, offset=offset)
            self.tables[name] = table.reshape(shape)
            offset += _aligned(table.nbytes, 64)

    def blocks(self, first: int, count: int, *, num_bytes: int) -> memoryview:
        """See the first `num_bytes` of `count` neighbouring blocks, writable."""
        start = self.layout.data_at + first * self.layout.block_bytes
        return self._bytes[start : start + min(num_bytes, count * self.layout.block_bytes)]

    def close(self) -> None:
        """Forget the memory; it is unmapped when the last view of it is gone."""
        self.tables.clear()
        self._bytes = memoryview(b"")
        self.words = np.zeros(0, np.uint64)


def private_arena(layout: Layout) -> Arena:
    """Make an arena in memory of this process alone."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return Arena(layout, mmap.mmap(-1, layout.file_bytes, flags=flags))


def open_arena(folder: Path, layout: Layout, *, recreate: bool) -> Arena:
    """Map the arena of a folder, made if missing. Call under the folder's lock.

    Args:
        folder: where the file lies; a tmpfs for memory that never goes to a disk.
        layout: what this process was told; the file must have been made with the same.
        recreate: replace a file that is refused. Processes that have the old one mapped keep it.

    Raises:
        CacheRefused: the file is foreign, damaged or of another geometry and `recreate` is off.
        OSError: the file cannot be made, for example for lack of space.
    """
    path = folder / ARENA_NAME
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return create_arena(folder, layout)
    try:
        defect = _defect(fd, layout)
        if defect is None:
            return Arena(layout, mmap.mmap(fd, layout.file_bytes))
    finally:
        os.close(fd)
    if not recreate:
        raise CacheRefused(f"{path}: {defect}; remove it or ask for it to be made anew")
    return create_arena(folder, layout)


def create_arena(folder: Path, layout: Layout) -> Arena:
    """Make an empty arena and put it in place of the one that may be there."""
    path = folder / ARENA_NAME
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, layout.file_bytes)
        os.pwrite(fd, layout.header, 0)
        arena = Arena(layout, mmap.mmap(fd, layout.file_bytes))
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    return arena


def _defect(fd: int, layout: Layout) -> str | None:
    """Say why the open file is not an arena of this layout."""
    status = os.fstat(fd)
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, not to {os.geteuid()}"
    head = os.pread(fd, _HEADER.size + _CRC.size, 0)
    if len(head) < _HEADER.size + _CRC.size or not head.startswith(_MAGIC):
        return "is not an arena of a host store"
    _, version, members, block_bytes, num_blocks = _HEADER.unpack_from(head)
    if version != FORMAT_VERSION:
        return f"format_version is {version}, this build reads {FORMAT_VERSION}"
    if _CRC.unpack_from(head, _HEADER.size)[0] != zlib.crc32(head[: _HEADER.size]):
        return "its header is damaged"
    expected = (MAX_MEMBERS, layout.block_bytes, layout.num_blocks)
    if (members, block_bytes, num_blocks) != expected:
        return (
            f"made for {num_blocks} blocks of {block_bytes} bytes and {members} members, this "
            f"process was told {layout.num_blocks} of {layout.block_bytes} and {MAX_MEMBERS}"
        )
    if status.st_size != layout.file_bytes:
        return f"holds {status.st_size} bytes instead of {layout.file_bytes}"
    return None


def _aligned(size: int, step: int) -> int:
    return -(-size // step) * step
