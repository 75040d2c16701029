"""A request's sampling fields to the engine's parameters, with the model's own defaults."""

from __future__ import annotations

import secrets

import msgspec

from trnrt_router.errors import InvalidRequest
from trnrt_router.openai.chat import ChatRequest
from trnrt_router.openai.completions import CompletionRequest
from trnrt_router.openai.decode import integer, optional_integer
from trnrt_router.protocol import EngineInfo, SamplingParams

MAX_TOP_LOGPROBS = 20
NUM_SEEDS = 2**32


def read_sampling(
    request: ChatRequest | CompletionRequest,
    info: EngineInfo,
    *,
    max_tokens: int | None,
    num_logprobs: int | None,
) -> SamplingParams:
    """Return the parameters all choices of a request share; an unseeded request is seeded here.

    Raises:
        InvalidRequest: a field is out of range; `param` names it.
    """
    defaults = info.default_sampling
    top_p, top_k = _nucleus(request, info)
    min_tokens = optional_integer(request.min_tokens, "min_tokens") or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise InvalidRequest(
            f"min_tokens is {min_tokens}, more than max_tokens, {max_tokens}", param="min_tokens"
        )
    seed = optional_integer(request.seed, "seed")
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=_or(request.temperature, defaults.temperature),
        top_p=top_p,
        top_k=top_k,
        min_p=_or(request.min_p, defaults.min_p),
        repetition_penalty=_or(request.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=_or(request.presence_penalty, defaults.presence_penalty),
        frequency_penalty=_or(request.frequency_penalty, defaults.frequency_penalty),
        logit_bias=_logit_bias(request, info.vocab_size),
        seed=secrets.randbelow(NUM_SEEDS) if seed is None else seed % NUM_SEEDS,
        min_tokens=min_tokens,
        stop_token_ids=tuple(
            token_id(value, "stop_token_ids", info.vocab_size)
            for value in request.stop_token_ids or ()
        ),
        ignore_eos=bool(request.ignore_eos),
        num_logprobs=num_logprobs,
    )


def fit_to_window(params: SamplingParams, room: int) -> SamplingParams:
    """Clamp what is generated to the room the window leaves: `max_tokens` is a ceiling."""
    max_tokens = room if params.max_tokens is None else min(params.max_tokens, room)
    return msgspec.structs.replace(
        params, max_tokens=max_tokens, min_tokens=min(params.min_tokens, max_tokens)
    )


def stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    """Return the stop strings of a request."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def checked_num_logprobs(value: float | None, param: str) -> int | None:
    """Return how many alternatives are asked for at each position."""
    count = optional_integer(value, param)
    if count is not None and count > MAX_TOP_LOGPROBS:
        raise InvalidRequest(f"{param} is {count}, at most {MAX_TOP_LOGPROBS}", param=param)
    return count


def token_id(value: float, param: str, vocab_size: int) -> int:
    """Return a token id of the model's vocabulary."""
    number = integer(value, param)
    if not 0 <= number < vocab_size:
        raise InvalidRequest(
            f"{param}: {number} is no token id, ids are 0 to {vocab_size - 1}", param=param
        )
    return number


def _nucleus(request: ChatRequest | CompletionRequest, info: EngineInfo) -> tuple[float, int]:
    defaults = info.default_sampling
    top_p = _or(request.top_p, defaults.top_p)
    top_k = optional_integer(request.top_k, "top_k")
    # -1 is the field's "off"; beyond the vocabulary nothing is cut, and 64 bits may be too few.
    top_k = defaults.top_k if top_k is None else min(max(top_k, 0), info.vocab_size)
    # A nucleus of no mass is the likeliest token alone.
    return (1.0, 1) if top_p == 0 else (top_p, top_k)


def _logit_bias(request: ChatRequest | CompletionRequest, vocab_size: int) -> dict[int, float]:
    bias: dict[int, float] = {}
    for key, value in (request.logit_bias or {}).items():
        try:
            number = int(key)
        except ValueError:
            raise InvalidRequest(
                f"logit_bias: {key[:40]!r} is no token id", param="logit_bias"
            ) from None
        bias[token_id(number, "logit_bias", vocab_size)] = value
    return bias


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
