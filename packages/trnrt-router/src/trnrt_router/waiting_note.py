"""What a waiting client is told of its place, in a comment line of its stream."""

from __future__ import annotations

from trnrt_router.protocol import RequestProgress


def waiting_note(progress: RequestProgress | None) -> str:
    """Word a request's progress; `waiting` where there is none to tell."""
    if progress is None:
        return "waiting"
    if progress.position:
        note = f"queued position={progress.position}"
    else:
        note = f"prefill computed={progress.num_computed_tokens} total={progress.num_prompt_tokens}"
    return note if progress.prefill_s is None else f"{note} prefill_s={progress.prefill_s:.0f}"
