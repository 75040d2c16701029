"""Names of compiled graphs, and the manifest that says which files hold them.

Three names follow one another. A `GraphKey` is what the engine asks for; it is computed from
settings and sources, without tracing or a compiler. A graph hash is the SHA-256 of what was
captured for it. An `ArtefactKey` adds everything about the compiler. The manifest maps each to the
next and the last to files. Written by trnrt-compile, read by the engine; one codec for both.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from trnrt_kernels.errors import ManifestMismatch

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"

HEADER_FIELDS = (
    "format_version",
    "compiler_version",
    "tp",
    "cp",
    "lnc",
    "model_revision",
    "kernels_hash",
)


class Bucket(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The static sizes of a step.

    Fields:
        rows: of a prefill chunk, or of a decode batch.
        context: tokens the block table reaches.
    """

    phase: Literal["prefill", "decode"]
    rows: int
    context: int


class GraphKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a graph is for.

    Fields:
        segment: kind of the segment; a head's says what it ends in, as `head+sample`.
        dims: the numbers of the config that the segment depends on.
        dtype: of the activations; cache_dtypes: by cache name.
        weight_form: `tensor`, or `codes+scales` where FP8 weights stay FP8.
        decisions: answers of the decision rules that were used, by question.
        sources: digest of the sources of the segment's ops and kernels.
    """

    family: str
    segment: str
    dims: dict[str, int | float | bool | str]
    bucket: Bucket
    target: str
    numeric_mode: str
    dtype: str
    cache_dtypes: dict[str, str]
    weight_form: str
    tp: int
    cp: int
    lnc: int
    decisions: dict[str, str] = {}
    sources: str

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical form; the key's name in the manifest."""
        return canonical_digest(self)

    def __str__(self) -> str:
        bucket = self.bucket
        return (
            f"{self.segment} {bucket.phase} rows={bucket.rows} context={bucket.context} "
            f"({self.digest[:12]})"
        )


class ArtefactKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a compiled graph depends on.

    Fields:
        flags: of the compiler, sorted. isa: instruction-set level the code needs.
    """

    graph_hash: str
    compiler: str
    compiler_version: str
    flags: tuple[str, ...]
    isa: str

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical form."""
        return canonical_digest(self)


class CachedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of the cache folder; `path` is relative to it."""

    path: str
    num_bytes: int
    sha256: str


class Artefact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A compiled graph and its files, the one to load first."""

    key: ArtefactKey
    files: tuple[CachedFile, ...]


class GraphEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A graph that was captured for a key."""

    key: GraphKey
    graph_hash: str


class ManifestHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What a whole cache was made for; checked before anything else in it is read."""

    format_version: int = FORMAT_VERSION
    compiler_version: str
    tp: int
    cp: int
    lnc: int
    model_revision: str
    kernels_hash: str

    def check(self, expected: ManifestHeader) -> None:
        """Compare with what the engine needs.

        Raises:
            ManifestMismatch: a field differs; the message names it, expected and found.
        """
        for field in HEADER_FIELDS:
            wanted, found = getattr(expected, field), getattr(self, field)
            if wanted != found:
                raise ManifestMismatch(
                    f"compiled cache: {field} expected {wanted!r}, found {found!r}: "
                    f"compile again for this build and model"
                )


class CacheManifest(ManifestHeader, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything a compiled cache holds.

    Fields:
        graphs: by digest of the graph key. artefacts: by graph hash.
    """

    graphs: dict[str, GraphEntry] = {}
    artefacts: dict[str, Artefact] = {}

    def find(self, key: GraphKey) -> Artefact | None:
        """The compiled graph for a key, None if it is not there."""
        entry = self.graphs.get(key.digest)
        return None if entry is None else self.artefacts.get(entry.graph_hash)

    def missing(self, keys: Iterable[GraphKey]) -> list[GraphKey]:
        """The keys without a compiled graph, in the order given."""
        return [key for key in keys if self.find(key) is None]

    @classmethod
    def make(
        cls, header: ManifestHeader, graphs: Iterable[GraphEntry], artefacts: Iterable[Artefact]
    ) -> Self:
        """Put entries under their names."""
        return cls(
            **{field: getattr(header, field) for field in HEADER_FIELDS},
            graphs={entry.key.digest: entry for entry in graphs},
            artefacts={artefact.key.graph_hash: artefact for artefact in artefacts},
        )


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: equal values give equal bytes."""
    return msgspec.json.encode(value, order="sorted")


def canonical_digest(value: Any) -> str:
    """SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def read_manifest(folder: Path, *, expected: ManifestHeader | None = None) -> CacheManifest:
    """Read a cache folder's manifest.

    The header is checked on its own first, so a cache of another format is named as that and not
    as a file with odd fields.

    Raises:
        ManifestMismatch: no manifest, damaged, another format, or not what is `expected`.
    """
    path = folder / MANIFEST_FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ManifestMismatch(f"cannot read {path}: {error.strerror}") from error
    try:
        header: ManifestHeader = msgspec.json.decode(content, type=ManifestHeader)
        if header.format_version != FORMAT_VERSION:
            raise ManifestMismatch(
                f"compiled cache: format_version expected {FORMAT_VERSION!r}, found "
                f"{header.format_version!r}: compile again with this version"
            )
        if expected is not None:
            header.check(expected)
        manifest: CacheManifest = msgspec.json.decode(content, type=CacheManifest)
    except msgspec.MsgspecError as error:
        raise ManifestMismatch(f"{path} is damaged: {error}") from error
    for digest, entry in manifest.graphs.items():
        if entry.key.digest != digest:
            raise ManifestMismatch(f"{path} is damaged: graph {digest} is {entry.key}")
    return manifest


def write_manifest(folder: Path, manifest: CacheManifest) -> None:
    """Write a cache folder's manifest; a reader sees the old one or the whole new one."""
    path = folder / MANIFEST_FILE
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(msgspec.json.format(canonical_json(manifest), indent=1))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
