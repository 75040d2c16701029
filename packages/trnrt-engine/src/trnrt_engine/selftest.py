"""Start-up proof that the prefix cache gives back, on the served weights, what was computed.

A fixed prompt is answered cold, under a salt of its own, then with a hit in each tier there is. An
engine whose answer differs, or that does not hit, must not serve. Before a lower tier is asked, the
memory that was freed is blanked: a load that brings nothing would find the right bytes there.
Nothing is left behind in any tier or counter.
"""

from __future__ import annotations

import logging
import os
import random
import time

from trnrt_engine.api import (
    CacheReport,
    EngineRequest,
    FinishReason,
    SamplingParams,
    TokenDelta,
    TokenLogprob,
)
from trnrt_engine.cache.report import DEVICE
from trnrt_engine.core import EngineCore, Stepper
from trnrt_engine.errors import SelfTestFailed
from trnrt_engine.intake import make_request
from trnrt_kernels.serving import GRID

logger = logging.getLogger(__name__)

NUM_TOKENS = GRID + 7  # one bundle, and something left to compute
NUM_OUTPUTS = 2
FAST_TOLERANCE = 1e-4  # of a logprob, where bits may depend on how a prompt is cut
MAX_WAIT_S = 60.0
NUM_BLANKED = 16  # pages, and slots; more than the answers before have used

Answer = list[TokenLogprob]


def check_prefix_cache(core: EngineCore, *, is_exact: bool) -> None:
    """Answer one prompt from every tier.

    Args:
        is_exact: hits must be bitwise the cold answer.

    Raises:
        SelfTestFailed: an answer differs, or a tier did not give it back.
    """
    limits = core.limits
    if min(limits.max_model_len, limits.num_pages * limits.page_size) < NUM_TOKENS + NUM_OUTPUTS:
        logger.warning("prefix cache not checked: the window is shorter than its grid")
        return
    if not core.cache.num_bundle_slots:
        logger.warning("prefix cache never hits: the memory for caches has no room for a state")
        return
    started_s = time.monotonic()
    salt = f"self-test {os.urandom(16).hex()}"
    try:
        _check_tiers(core, salt, is_exact=is_exact)
    finally:
        core.cache.flush(salt)
    core.cache.reset_counters()
    core.metrics.reset()
    logger.info("prefix cache checked seconds=%.2f", time.monotonic() - started_s)


def _check_tiers(core: EngineCore, salt: str, *, is_exact: bool) -> None:
    cold, report = _answer(core, salt)
    if report.tier:
        raise SelfTestFailed(f"a prompt nobody sent before was found on {report.tier}")
    tiers = core.cache.tiers.tiers if core.cache.tiers is not None else []
    for tier in (DEVICE, *(tier.name for tier in tiers)):
        if tier != DEVICE:
            core.cache.flush_device(salt)
            core.cache.blank_free(NUM_BLANKED)
        given, report = _answer(core, salt)
        if report.tier != tier:
            raise SelfTestFailed(
                f"a prefix that should lie on {tier} was found on {report.tier or 'no tier'} "
                f"(reason {report.reason}): raise its budget or serve with --prefix-cache off"
            )
        _compare(cold, given, where=tier, is_exact=is_exact)
        if tier != DEVICE and core.cache.tiers is not None:
            core.cache.tiers.flush_tier(tier, salt)


def _answer(core: EngineCore, salt: str) -> tuple[Answer, CacheReport]:
    """Answer the prompt, and let all copies end."""
    ids = random.Random(0).choices(range(core.limits.vocab_size), k=NUM_TOKENS)
    spec = EngineRequest(
        request_id=salt,
        token_ids=ids,
        cache_salt=salt,
        sampling=SamplingParams(
            temperature=0.0, max_tokens=NUM_OUTPUTS, ignore_eos=True, num_logprobs=20
        ),
    )
    stepper = Stepper(core, clock=time.monotonic)
    core.scheduler.add(make_request(spec, core.limits, arrival_s=time.monotonic()))
    deltas: list[TokenDelta] = []
    until_s = time.monotonic() + MAX_WAIT_S
    while core.scheduler.has_work or core.cache.is_copying:
        deltas += stepper.step()
        if time.monotonic() > until_s:
            raise SelfTestFailed(f"the prefix cache's check took longer than {MAX_WAIT_S:.0f} s")
    last = deltas[-1]
    if last.finish_reason is FinishReason.ERROR and last.error is not None:
        raise SelfTestFailed(f"the prefix cache's check failed: {last.error.message}")
    answer = [entry for delta in deltas for entry in delta.logprobs or []]
    report = next((d.cache_report for d in deltas if d.cache_report is not None), CacheReport())
    return answer, report


def _compare(cold: Answer, given: Answer, *, where: str, is_exact: bool) -> None:
    for index, (wanted, found) in enumerate(zip(cold, given, strict=True)):
        if wanted == found:
            continue
        likeliest = [logprob for _, logprob in wanted.top]
        error = max(abs(a - b) for a, b in zip(likeliest, (x for _, x in found.top), strict=True))
        if is_exact or not error <= FAST_TOLERANCE:
            raise SelfTestFailed(
                f"a prefix found on {where} changes the answer: output {index} is "
                f"{found.token_id} instead of {wanted.token_id}, its logprobs differ by up to "
                f"{error:.2g}; serve with --prefix-cache off"
            )
        if wanted.token_id != found.token_id:
            return  # a tie within the tolerance; what follows has another beginning
