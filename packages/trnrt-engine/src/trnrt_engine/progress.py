"""Where each request stands before its first token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from trnrt_engine.api import RequestProgress
from trnrt_engine.request import Request


def progress_of(
    running: Iterable[Request], waiting: Sequence[Request], *, tokens_per_s: float | None
) -> dict[str, RequestProgress]:
    """Say of every request whose prompt is not computed where it stands.

    Args:
        waiting: in the order of their admission.
        tokens_per_s: speed of prefill, once it is known.
    """
    prefilling = [r for r in running if r.num_prefilled_tokens < r.num_prompt_tokens]
    missing = [r.num_prompt_tokens - r.num_prefilled_tokens for r in prefilling]
    num_before = sum(missing)
    report = {}
    for request, num_missing in zip(prefilling, missing, strict=True):
        # Chunks take turns: at worst the others compute as much as it does itself.
        num_tokens = min(num_before, num_missing * len(prefilling))
        report[request.request_id] = _progress(request, 0, num_tokens, tokens_per_s)
    for position, request in enumerate(waiting, start=1):
        num_before += request.num_prompt_tokens
        report[request.request_id] = _progress(request, position, num_before, tokens_per_s)
    return report


def _progress(
    request: Request, position: int, num_tokens: int, tokens_per_s: float | None
) -> RequestProgress:
    return RequestProgress(
        position=position,
        num_computed_tokens=request.num_prefilled_tokens,
        num_prompt_tokens=request.num_prompt_tokens,
        prefill_s=num_tokens / tokens_per_s if tokens_per_s else None,
    )
