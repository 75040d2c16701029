"""What an engine accepts: every value of a request checked before it costs anything."""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trnrt_engine.api import MAX_TOP_LOGPROBS, CacheMode, EngineRequest, SamplingParams
from trnrt_engine.cache.prefix_key import pack_ids
from trnrt_engine.errors import ContextTooLong, InvalidRequest, RequestTooLarge
from trnrt_engine.request import Request

MAX_LOGIT_BIAS = 100.0
MAX_PENALTY = 2.0
NUM_SEEDS = 2**32
# What a step's tensors hold: one value above it would fail every request of the step.
MAX_INTEGER = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What requests are held against.

    Fields:
        max_model_len: the window, tokens of prompt and output together.
        num_pages: pages in all.
    """

    vocab_size: int
    max_model_len: int
    num_pages: int
    page_size: int
    eos_token_ids: tuple[int, ...]


def make_request(spec: EngineRequest, limits: RequestLimits, *, arrival_s: float) -> Request:
    """Check a request and work out its limits.

    Generation is clamped to the window. A request without `max_tokens` is also clamped to the
    page pool, since it did not ask for more; one that names more than the pool is refused.

    Raises:
        InvalidRequest: a field is out of range; `param` names it.
        ContextTooLong: the prompt fills the window.
        RequestTooLarge: the page pool could never hold it.
    """
    packed_ids = _check_tokens(spec, limits)
    check_sampling(spec.sampling, vocab_size=limits.vocab_size)
    _check_envelope(spec)
    num_prompt = len(spec.token_ids)
    if num_prompt >= limits.max_model_len:
        raise ContextTooLong(
            f"the prompt has {num_prompt} tokens; the context window of "
            f"{limits.max_model_len} must leave room for at least one generated token",
            param="token_ids",
        )
    sampling = spec.sampling
    capacity = limits.num_pages * limits.page_size
    max_output = limits.max_model_len - num_prompt
    if sampling.max_tokens is not None:
        max_output = min(max_output, sampling.max_tokens)
    else:
        # The last output takes no room: nothing follows it.
        room = capacity - num_prompt + 1
        max_output = min(max_output, max(room, 1))
    eos_ids = () if sampling.ignore_eos else limits.eos_token_ids
    request = Request(
        spec=spec,
        packed_ids=packed_ids,
        arrival_s=arrival_s,
        max_output_tokens=max_output,
        stop_ids=frozenset((*sampling.stop_token_ids, *eos_ids)),
        deadline_at_s=None if spec.deadline_s is None else arrival_s + spec.deadline_s,
        output_token_ids=list(spec.prior_output_ids),
    )
    num_pages = -(-request.max_cached_tokens // limits.page_size)
    if num_pages > limits.num_pages:
        raise RequestTooLarge(
            f"{num_prompt} prompt and {max_output} output tokens need {num_pages} pages of "
            f"{limits.page_size} tokens, the engine has {limits.num_pages}: "
            f"shorten the prompt or lower max_tokens",
            param="max_tokens"
            if num_prompt <= limits.num_pages * limits.page_size
            else "token_ids",
        )
    return request


def _check_tokens(spec: EngineRequest, limits: RequestLimits) -> array[int]:
    """Check all ids and marks; returns the prompt packed, which the caches read it as."""
    if not spec.token_ids:
        raise InvalidRequest(
            "token_ids is empty: a prompt has at least one token", param="token_ids"
        )
    packed_ids = _packed("token_ids", spec.token_ids, limits.vocab_size)
    _check_ids("prior_output_ids", spec.prior_output_ids, limits.vocab_size)
    marks = spec.marks
    ascending = all(low < high for low, high in itertools.pairwise(marks))
    if marks and not (ascending and marks[0] >= 0 and marks[-1] <= len(spec.token_ids)):
        raise InvalidRequest(
            f"marks must ascend within the {len(spec.token_ids)} prompt tokens", param="marks"
        )
    return packed_ids


def _check_envelope(spec: EngineRequest) -> None:
    if not spec.request_id:
        raise InvalidRequest("request_id is empty", param="request_id")
    if spec.choice_index < 0:
        raise _out_of_range("choice_index", spec.choice_index, "at least 0")
    if spec.deadline_s is not None and not 0 < spec.deadline_s < math.inf:
        raise _out_of_range("deadline_s", spec.deadline_s, "a positive number of seconds")
    control = spec.cache
    if control.ttl_s is not None and not 0 < control.ttl_s < math.inf:
        raise _out_of_range("cache.ttl_s", control.ttl_s, "a positive number of seconds")
    if control.pin and not control.session_id:
        raise InvalidRequest(
            "cache.pin keeps what a session needs: cache.session_id must name it",
            param="cache.session_id",
        )
    if control.pin and control.mode is not CacheMode.WRITE:
        raise InvalidRequest(
            f"cache.pin keeps what a request leaves: cache.mode {control.mode} leaves nothing",
            param="cache.pin",
        )


def check_sampling(sampling: SamplingParams, *, vocab_size: int) -> None:
    """Check every sampling value.

    Raises:
        InvalidRequest: one is out of range; `param` names it.
    """
    max_tokens = sampling.max_tokens
    if max_tokens is not None and max_tokens < 1:
        raise _out_of_range("max_tokens", max_tokens, "at least 1")
    if not 0 <= sampling.min_tokens <= MAX_INTEGER:
        raise _out_of_range("min_tokens", sampling.min_tokens, f"within 0 to {MAX_INTEGER}")
    if max_tokens is not None and sampling.min_tokens > max_tokens:
        raise _out_of_range("min_tokens", sampling.min_tokens, f"at most max_tokens, {max_tokens}")
    _check_range("temperature", sampling.temperature, 0.0, math.inf)
    _check_range("top_p", sampling.top_p, 0.0, 1.0, open_low=True)
    _check_range("min_p", sampling.min_p, 0.0, 1.0)
    _check_range("repetition_penalty", sampling.repetition_penalty, 0.0, math.inf, open_low=True)
    _check_range("presence_penalty", sampling.presence_penalty, -MAX_PENALTY, MAX_PENALTY)
    _check_range("frequency_penalty", sampling.frequency_penalty, -MAX_PENALTY, MAX_PENALTY)
    if not 0 <= sampling.top_k <= MAX_INTEGER:
        raise _out_of_range("top_k", sampling.top_k, f"within 0 (off) to {MAX_INTEGER}")
    if not 0 <= sampling.seed < NUM_SEEDS:
        raise _out_of_range("seed", sampling.seed, "an unsigned 32-bit number")
    _check_ids("stop_token_ids", sampling.stop_token_ids, vocab_size)
    _check_ids("logit_bias", list(sampling.logit_bias), vocab_size)
    for bias in sampling.logit_bias.values():
        _check_range("logit_bias", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)
    num_logprobs = sampling.num_logprobs
    if num_logprobs is not None and not 0 <= num_logprobs <= MAX_TOP_LOGPROBS:
        raise _out_of_range("num_logprobs", num_logprobs, f"within 0 to {MAX_TOP_LOGPROBS}")


def _packed(param: str, ids: Sequence[int], vocab_size: int) -> array[int]:
    """Pack ids and check them all at once: a long prompt is not walked in Python."""
    try:
        packed = pack_ids(ids)
    except (OverflowError, TypeError):
        packed = None
    if packed is None or np.frombuffer(packed, np.uint32).max() >= vocab_size:
        _check_ids(param, ids, vocab_size)
        raise _out_of_range(param, "no list of ids", f"token ids below {vocab_size}")
    return packed


def _check_ids(param: str, ids: Sequence[int], vocab_size: int) -> None:
    if not ids:
        return
    for extreme in (min(ids), max(ids)):
        if not 0 <= extreme < vocab_size:
            raise _out_of_range(param, extreme, f"a token id below {vocab_size}")


def _check_range(
    param: str, value: float, low: float, high: float, *, open_low: bool = False
) -> None:
    is_low_kept = value > low if open_low else value >= low
    if not (math.isfinite(value) and is_low_kept and value <= high):
        bracket = "(" if open_low else "["
        limit = f"{high:g}]" if high < math.inf else "inf)"
        raise _out_of_range(param, value, f"within {bracket}{low:g}, {limit}")


def _out_of_range(param: str, value: object, wanted: str) -> InvalidRequest:
    return InvalidRequest(f"{param} is {value}, must be {wanted}", param=param)
