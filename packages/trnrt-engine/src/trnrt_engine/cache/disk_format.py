"""One entry of a disk store as a file: a header of 128 bytes, then the payload.

    <folder>/<two hex digits>/<key in hex>.trnrt-bytes

The two digits are from a checksum of the key, so folders fill evenly whatever keys are made of.
The header carries its own checksum: an index is built from headers and file sizes alone. The
format version is that of this layout and says nothing about what the bytes mean.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from trnrt_engine.cache.bytestore import MAX_KEY_BYTES, MIN_KEY_BYTES

FORMAT_VERSION = 1
SUFFIX = ".trnrt-bytes"
TEMPORARY_SUFFIX = SUFFIX + ".tmp"
HEADER_BYTES = 128
NUM_FANS = 256

_MAGIC = b"TRNRTDSK"
_FIELDS = struct.Struct("<8sIIQqI64s")
_CRC = struct.Struct("<I")
_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class BadFile(Exception):
    """A file is not a whole entry of this format; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a file says about its payload: `crc` is that of `bytestore.checksum`."""

    key: bytes
    num_bytes: int
    value: int
    crc: int

    def pack(self) -> bytes:
        """Encode into `HEADER_BYTES`."""
        fields = _FIELDS.pack(
            _MAGIC, FORMAT_VERSION, len(self.key), self.num_bytes, self.value, self.crc, self.key
        )
        return (fields + _CRC.pack(zlib.crc32(fields))).ljust(HEADER_BYTES, b"\0")


def fan_of(key: bytes) -> int:
    """Choose the folder of a key, 0 .. NUM_FANS - 1."""
    return zlib.crc32(key) % NUM_FANS


def path_of(folder: Path, key: bytes) -> Path:
    """Name the file of a key."""
    return folder / f"{fan_of(key):02x}" / (key.hex() + SUFFIX)


def open_entry(path: Path) -> tuple[int, Header]:
    """Open a file for reading and check its header and size, not its payload.

    Returns:
        The descriptor, positioned anywhere, and the header.

    Raises:
        BadFile: foreign, of another version, truncated, damaged, or under a wrong name.
        OSError: it cannot be read; `FileNotFoundError` if it is not there.
    """
    fd = os.open(path, _READ_FLAGS)
    try:
        header = _parse(os.pread(fd, HEADER_BYTES, 0))
        size = os.fstat(fd).st_size
        if size != HEADER_BYTES + header.num_bytes:
            raise BadFile(f"holds {size} bytes instead of {HEADER_BYTES + header.num_bytes}")
        if path.name != header.key.hex() + SUFFIX or path.parent.name != (
            f"{fan_of(header.key):02x}"
        ):
            raise BadFile(f"holds the entry {header.key.hex()}")
    except BaseException:
        os.close(fd)
        raise
    return fd, header


def has_our_magic(path: Path) -> bool:
    """Say whether a file begins like one of ours, whatever its name."""
    try:
        fd = os.open(path, _READ_FLAGS)
    except OSError:
        return False
    try:
        return os.pread(fd, len(_MAGIC), 0) == _MAGIC
    except OSError:
        return False
    finally:
        os.close(fd)


def _parse(head: bytes) -> Header:
    if not head.startswith(_MAGIC):
        raise BadFile("is not an entry of a disk store" if head else "is empty")
    if len(head) < HEADER_BYTES:
        raise BadFile(f"ends after {len(head)} bytes, within its header")
    _, version, key_bytes, num_bytes, value, crc, key = _FIELDS.unpack_from(head)
    if version != FORMAT_VERSION:
        raise BadFile(f"format_version is {version}, this build reads {FORMAT_VERSION}")
    if _CRC.unpack_from(head, _FIELDS.size)[0] != zlib.crc32(head[: _FIELDS.size]):
        raise BadFile("its header is damaged")
    if not MIN_KEY_BYTES <= key_bytes <= MAX_KEY_BYTES:
        raise BadFile(f"its key has {key_bytes} bytes")
    return Header(key=key[:key_bytes], num_bytes=num_bytes, value=value, crc=crc)
