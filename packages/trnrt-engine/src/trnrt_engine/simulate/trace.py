"""Traces: who sent which prompt when, without text.

A trace file is JSON lines: a header, then one request a line (`TraceRequest`, its names are the
file's). Prompts are given as ids of 64-token blocks, equal where the tokens are, or as token ids.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from trnrt_engine.errors import TrnrtEngineError

FORMAT_VERSION = 1
BLOCK_TOKENS = 64
MAX_CACHED_BLOCKS = 65_536  # 16 MiB of tokens


class TraceError(TrnrtEngineError, ValueError):
    """A trace cannot be read; the message names file, line and field."""


class TraceHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line of a trace file."""

    format_version: int
    block_tokens: int = BLOCK_TOKENS
    note: str = ""


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request.

    Fields:
        id: unique in the trace.
        session: the conversation; parent: the session that started it; empty = nobody.
        time_s: when it is sent, if it waits for nothing.
        after: requests it waits for; it is sent `pause_s` after the last of them has ended.
        num_tokens: of the prompt; needed with `block_ids`, whose last block may be partial.
        block_ids: one per 64 tokens begun. Only blocks with the same id hold the same tokens.
        token_ids: the prompt itself, in place of `block_ids`.
        marks: positions worth a bundle, ascending; of several the first ends the system text.
        salt: prompts of different salts share nothing.
    """

    id: str
    session: str
    time_s: float = 0.0
    num_output_tokens: int = 1
    parent: str = ""
    after: list[str] = []
    pause_s: float = 0.0
    num_tokens: int = 0
    block_ids: list[int] = []
    token_ids: list[int] = []
    marks: list[int] = []
    salt: str = ""

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.token_ids) or self.num_tokens

    def prompt(self, vocab_size: int) -> array[int]:
        """Return token ids; those of blocks are made up from the block's id."""
        if self.token_ids:
            return array("I", self.token_ids)
        packed = array("I")
        for block_id in self.block_ids:
            packed.frombytes(_block_bytes(block_id, vocab_size))
        del packed[self.num_tokens :]
        return packed

    def defect(self) -> str | None:
        """Say what is wrong with it; None if nothing is."""
        if bool(self.token_ids) == bool(self.block_ids):
            return "needs either token_ids or block_ids"
        if self.block_ids and -(-self.num_tokens // BLOCK_TOKENS) != len(self.block_ids):
            return f"num_tokens is {self.num_tokens}, with {len(self.block_ids)} block_ids"
        if self.num_output_tokens < 1:
            return f"num_output_tokens is {self.num_output_tokens}, must be at least 1"
        if self.pause_s < 0 or self.time_s < 0:
            return "time_s and pause_s must not be negative"
        ascends = all(a < b for a, b in zip(self.marks, self.marks[1:], strict=False))
        most = self.num_prompt_tokens
        if self.marks and not (ascends and 0 <= self.marks[0] <= self.marks[-1] <= most):
            return f"marks must ascend within the {most} prompt tokens"
        return None


def read_trace(path: Path) -> list[TraceRequest]:
    """Read a trace: our JSON lines, or a file or folder of the public weka schema.

    Raises:
        TraceError: it is neither, or a line of it cannot be used.
    """
    from trnrt_engine.simulate.weka import read_weka

    if path.is_dir() or path.suffix == ".json":
        return checked(read_weka(path), path)
    try:
        first, *lines = path.read_bytes().splitlines()
        header: TraceHeader = msgspec.json.decode(first, type=TraceHeader)
    except (OSError, ValueError) as error:
        raise TraceError(f"{path}: no trace ({error}); its first line must be a header") from error
    if (header.format_version, header.block_tokens) != (FORMAT_VERSION, BLOCK_TOKENS):
        raise TraceError(
            f"{path}: format_version {header.format_version} with blocks of "
            f"{header.block_tokens} tokens; readable is {FORMAT_VERSION} with {BLOCK_TOKENS}"
        )
    decoder: msgspec.json.Decoder[TraceRequest] = msgspec.json.Decoder(TraceRequest)
    requests: list[TraceRequest] = []
    for number, line in enumerate(lines, start=2):
        try:
            requests.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            raise TraceError(f"{path}: line {number}: {error}") from error
    return checked(requests, path)


def checked(requests: list[TraceRequest], path: Path) -> list[TraceRequest]:
    """Return the requests of a trace, each found usable and waiting only for earlier ones."""
    seen: set[str] = set()
    for request in requests:
        defect = request.defect()
        if request.id in seen:
            defect = "its id is another request's"
        elif unknown := [name for name in request.after if name not in seen]:
            defect = f"it waits for {unknown[0]}, which is not before it"
        if defect is not None:
            raise TraceError(f"{path}: request {request.id}: {defect}")
        seen.add(request.id)
    if not requests:
        raise TraceError(f"{path}: no request in it")
    return requests


def write_trace(path: Path, requests: Iterable[TraceRequest], *, note: str = "") -> None:
    """Write a trace file."""
    encoder = msgspec.json.Encoder()
    header = TraceHeader(format_version=FORMAT_VERSION, note=note)
    with path.open("wb") as file:
        for item in (header, *requests):
            file.write(encoder.encode(item) + b"\n")


def trees_of(requests: Sequence[TraceRequest]) -> Iterator[list[TraceRequest]]:
    """Yield the requests of each root session with all it started, in order of the roots."""
    parents = {request.session: request.parent for request in requests}
    trees: dict[str, list[TraceRequest]] = {}
    for request in requests:
        root, seen = request.session, set()
        while parents.get(root) and root not in seen:
            seen.add(root)
            root = parents[root]
        trees.setdefault(root, []).append(request)
    yield from trees.values()


@lru_cache(maxsize=MAX_CACHED_BLOCKS)
def _block_bytes(block_id: int, vocab_size: int) -> bytes:
    seed = (block_id % 2**64).to_bytes(8, "little")
    drawn = np.frombuffer(hashlib.shake_128(seed).digest(4 * BLOCK_TOKENS), np.uint32)
    return (drawn % vocab_size).astype(np.uint32).tobytes()
