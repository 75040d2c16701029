"""What an engine takes and gives: requests in, token deltas out; token ids only, no text.

Import-light (no torch), so that a router process can hold these types.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

MAX_TOP_LOGPROBS = 20


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


class CacheMode(StrEnum):
    """What a request may do with cached prefixes.

    READ uses them and leaves none; WRITE uses and leaves them; OFF computes everything.
    """

    READ = "read"
    WRITE = "write"
    OFF = "off"


class CacheControl(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one request uses the prefix cache.

    Fields:
        ttl_s: seconds after which what it leaves is dropped; None = as long as there is room.
        pin: keep what it leaves until its session is released or `ttl_s` is over.
        session_id: the conversation it belongs to; empty = none.
    """

    mode: CacheMode = CacheMode.WRITE
    ttl_s: float | None = None
    pin: bool = False
    session_id: str = ""


class CacheReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a request found in the prefix cache.

    Fields:
        kv_depth: prompt tokens whose pages were found.
        state_depth: position of the deepest complete bundle within them: the hit.
        replayed: tokens with pages that were computed again, for want of a bundle behind them.
        tier: where the bundle lay (`device`, `host`, `disk`); empty without a hit.
        reason: how it hit, or why not, as `trnrt_engine.cache.report.Reason` spells it.
    """

    kv_depth: int = 0
    state_depth: int = 0
    replayed: int = 0
    tier: str = ""
    reason: str = ""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the next token of one request is drawn.

    Fields:
        max_tokens: generated tokens at most, EOS included; None = up to the window.
        temperature: 0 is greedy.
        top_k: 0 is off.
        seed: unsigned 32 bits; the router seeds a request that brings none.
        min_tokens: EOS and stop ids cannot be drawn before this many tokens.
        stop_token_ids: end the request beside the model's own EOS ids.
        num_logprobs: None = none, 0..20 = the drawn token's and that many alternatives'.
    """

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


class EngineRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One sequence to continue.

    Fields:
        token_ids: the prompt.
        prior_output_ids: tokens already emitted elsewhere; they count as output for seed
            position, penalties, limits and grammar, and are not emitted again.
        choice_index: position among the `n` choices of a client's request; part of the seed.
        marks: prompt positions worth a cache bundle (tokens before the mark), ascending.
        cache_salt: isolates cached prefixes; tenant: whom the work is charged to.
        priority: lower runs first. deadline_s: seconds from submission.
        cache: how the prefix cache is used.
    """

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


class TokenDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one step added to one request.

    Fields:
        token_ids: new ids; the last delta includes the stop token where one ended it.
        logprobs: one entry per id when asked for.
        finish_reason: set in the last delta only.
        stop_token_id: the id that ended the request (counts as output, is not text).
        num_output_tokens: output so far, prior output included.
        cache_report: in the first delta only.
    """

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


class RequestProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a request is from its first token; up to a second old.

    Fields:
        position: in the queue, 1 = next; 0 = admitted.
        num_computed_tokens: of the prompt, cached ones included.
        prefill_s: how long prompts are computed until its own is, at the speed measured; None
            before there is one. A wait for a free place comes on top.
    """

    position: int = 0
    num_computed_tokens: int = 0
    num_prompt_tokens: int = 0
    prefill_s: float | None = None


class EngineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a router must know of an engine before it sends a request.

    Fields:
        max_model_len: tokens of prompt and output together.
        default_sampling: what the model's generation_config asks for where a client is silent.
    """

    model: str
    max_model_len: int
    max_num_seqs: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    backend: str
    version: str
    default_sampling: SamplingParams = SamplingParams()


class EngineHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether an engine lives and takes requests; answered without waiting for a step.

    Fields:
        is_alive: the loop's thread runs.
        is_ready: requests are taken (alive, and neither draining nor closed).
        detail: why not ready; empty when ready.
        step_running_s: how long the step under way has been running; None between steps.
    """

    is_alive: bool
    is_ready: bool
    detail: str = ""
    step_running_s: float | None = None


class HistogramSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """Observations counted by upper bound, as Prometheus histograms are (not cumulative).

    Fields:
        bounds: upper bounds, ascending.
        counts: observations per bound, one more at the end for those above the last.
        total: sum of all observed values.
    """

    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    total: float = 0.0


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of load and counters; counters never decrease.

    Fields:
        free_pages: pages that hold nothing. cached_pages: pages of the prefix cache nobody uses.
        free_state_slots, total_state_slots: those of sequences and bundles.
        num_bundles: positions of the prefix cache that can be hit.
        prompt_tokens: prompt tokens computed; generation_tokens: tokens handed out.
        cache_hit_tokens: prompt tokens not computed. cache_lookups: admissions by reason.
        evicted_pages, evicted_bundles: given up for room.
        skipped_bundles: wanted, and no slot could be had.
        cache_tier_hit_tokens: those of cache_hit_tokens, by the tier they came from.
        cache_bytes_written, cache_bytes_loaded: copied to and from the tiers below the device.
        cache_skipped_writes: bundles not copied down for want of room beside what runs.
        cache_failed_writes: pages and states a tier did not take.
        cache_loads: bundles asked of the tiers below; cache_late_loads, cache_failed_loads: those
            that were given up, their prompts computed.
        stall_overruns: chunks that ran between two decodes though, with them, even the smallest
            takes longer than the stall budget.
        preemptions: sequences whose room was taken away, by way ("swap", "recompute"); resumes:
            those that went on, by how. swapped_bytes: copied "out" to host memory and back "in".
        failed_swaps: sequences lost on the way, computed again.
        queue_s: submission to admission. time_to_first_token_s: submission to first token.
        inter_token_s: between two tokens of a request. step_s: launch to result of a step.
    """

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
