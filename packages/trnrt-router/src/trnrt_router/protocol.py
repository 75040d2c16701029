"""The wire between router and engine: structs, version, frames.

One long-lived `GET /stream` per router carries length-prefixed msgpack frames from the engine:
a `Hello`, then one `Frame` a step with the deltas of all requests, and a `Beat` every second or
so. `POST /submit` and `POST /abort` are small and answered at once; `GET /progress` says where one
request stands; `POST /flush` and
`POST /release-session` speak to the prefix cache. A request belongs to the stream whose id its
`Submit` names; when the stream ends, its requests are aborted.

The structs mirror `trnrt_engine.api` field by field, because a router without the engine package
must be able to read them; a contract test walks both sides.
"""

from __future__ import annotations

import struct
from enum import StrEnum

import msgspec

PROTOCOL_VERSION = 3
MAX_FRAME_BYTES = 64 * 1024 * 1024

_LENGTH = struct.Struct(">I")


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class CacheMode(StrEnum):
    """What a request may do with cached prefixes; see `trnrt_engine.api`."""

    READ = "read"
    WRITE = "write"
    OFF = "off"


class CacheControl(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How one request uses the prefix cache; see `trnrt_engine.api`."""

    mode: CacheMode = CacheMode.WRITE
    ttl_s: float | None = None
    pin: bool = False
    session_id: str = ""


class CacheReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a request found in the prefix cache; see `trnrt_engine.api`."""

    kv_depth: int = 0
    state_depth: int = 0
    replayed: int = 0
    tier: str = ""
    reason: str = ""


class SamplingParams(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """How the next token of one request is drawn; see `trnrt_engine.api`."""

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int = 0
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    num_logprobs: int | None = None


class EngineRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One sequence to continue; see `trnrt_engine.api`."""

    request_id: str
    token_ids: list[int]
    sampling: SamplingParams = SamplingParams()
    prior_output_ids: list[int] = []
    choice_index: int = 0
    marks: list[int] = []
    cache_salt: str = ""
    tenant: str = ""
    priority: int = 0
    deadline_s: float | None = None
    cache: CacheControl = CacheControl()


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural-log probability of a drawn token and of the likeliest alternatives."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]] = []


class RequestError(msgspec.Struct, frozen=True, array_like=True):
    """Why a request failed: a name of the engine's exception tree and its message."""

    kind: str
    message: str


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What one step added to one request; see `trnrt_engine.api`."""

    request_id: str
    token_ids: list[int] = []
    logprobs: list[TokenLogprob] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: RequestError | None = None
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    cache_report: CacheReport | None = None


class RequestProgress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a request is from its first token; see `trnrt_engine.api`."""

    position: int = 0
    num_computed_tokens: int = 0
    num_prompt_tokens: int = 0
    prefill_s: float | None = None


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a router must know of an engine before it sends a request; see `trnrt_engine.api`."""

    model: str
    max_model_len: int
    max_num_seqs: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    backend: str
    version: str
    default_sampling: SamplingParams = SamplingParams()


class HistogramSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """Observations by upper bound, not cumulative, and their sum; see `trnrt_engine.api`."""

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    total: float = 0.0


class EngineStats(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A snapshot of load and counters; see `trnrt_engine.api`."""

    num_waiting: int = 0
    num_running: int = 0
    free_pages: int = 0
    total_pages: int = 0
    cached_pages: int = 0
    free_state_slots: int = 0
    total_state_slots: int = 0
    num_bundles: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0
    requests_finished: int = 0
    requests_failed: int = 0
    requests_aborted: int = 0
    cache_hit_tokens: int = 0
    cache_lookups: dict[str, int] = {}
    evicted_pages: int = 0
    evicted_bundles: int = 0
    skipped_bundles: int = 0
    cache_tier_hit_tokens: dict[str, int] = {}
    cache_bytes_written: dict[str, int] = {}
    cache_bytes_loaded: dict[str, int] = {}
    cache_skipped_writes: int = 0
    cache_failed_writes: int = 0
    cache_loads: int = 0
    cache_late_loads: int = 0
    cache_failed_loads: int = 0
    stall_overruns: int = 0
    preemptions: dict[str, int] = {}
    resumes: dict[str, int] = {}
    swapped_bytes: dict[str, int] = {}
    failed_swaps: int = 0
    queue_s: HistogramSnapshot = HistogramSnapshot()
    time_to_first_token_s: HistogramSnapshot = HistogramSnapshot()
    inter_token_s: HistogramSnapshot = HistogramSnapshot()
    step_s: HistogramSnapshot = HistogramSnapshot()


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First frame of a stream."""

    protocol: int
    stream_id: str
    info: EngineInfo


class Frame(msgspec.Struct, frozen=True, tag="frame"):
    """The deltas of one engine step."""

    deltas: list[TokenDelta]


class Beat(msgspec.Struct, frozen=True, tag="beat"):
    """Sign of life with the engine's load, and where this stream's requests stand.

    Fields:
        progress: of those whose prompt is not computed, by request id.
    """

    stats: EngineStats
    progress: dict[str, RequestProgress] = {}


StreamMessage = Hello | Frame | Beat


class Submit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests to start together: all are accepted or none."""

    protocol: int
    stream_id: str
    requests: list[EngineRequest]


class Abort(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Requests nobody waits for any more; unknown ids are ignored."""

    request_ids: list[str]


class Flush(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Forget cached prefixes: those of one salt, or all (None)."""

    salt: str | None = None


class ReleaseSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Unpin what a session has pinned; an unknown session is ignored."""

    session_id: str


class Refusal(msgspec.Struct, frozen=True):
    """Body of every reply of the engine that is not a success."""

    kind: str
    message: str
    param: str | None = None
    retry_after_s: float | None = None


class WorkerHealth(msgspec.Struct, frozen=True):
    """State of an engine process: `loading`, `ready`, `draining` or `failed`."""

    state: str
    detail: str = ""


_encoder = msgspec.msgpack.Encoder()
_message_decoder: msgspec.msgpack.Decoder[StreamMessage] = msgspec.msgpack.Decoder(StreamMessage)


def encode_frame(message: StreamMessage) -> bytes:
    """Return one frame: a big-endian 32-bit length and the msgpack payload."""
    payload = _encoder.encode(message)
    return _LENGTH.pack(len(payload)) + payload


class FrameReader:
    """Cut a byte stream back into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[StreamMessage]:
        """Add received bytes and return the messages they complete.

        Raises:
            msgspec.DecodeError: the bytes are no frame of this protocol.
        """
        self._buffer += data
        messages: list[StreamMessage] = []
        start = 0
        while len(self._buffer) - start >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._buffer, start)
            if size > MAX_FRAME_BYTES:
                raise msgspec.DecodeError(f"frame of {size} bytes exceeds {MAX_FRAME_BYTES}")
            end = start + _LENGTH.size + size
            if len(self._buffer) < end:
                break
            with memoryview(self._buffer) as view:
                messages.append(_message_decoder.decode(view[start + _LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        return messages
