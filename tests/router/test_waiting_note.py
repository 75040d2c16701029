"""What a waiting client reads."""

from __future__ import annotations

import pytest

from trnrt_router.protocol import RequestProgress
from trnrt_router.waiting_note import waiting_note


@pytest.mark.parametrize(
    ("progress", "note"),
    [
        (None, "waiting"),
        (RequestProgress(position=3, num_prompt_tokens=9), "queued position=3"),
        (
            RequestProgress(position=1, num_prompt_tokens=9, prefill_s=12.4),
            "queued position=1 prefill_s=12",
        ),
        (
            RequestProgress(num_computed_tokens=4096, num_prompt_tokens=131_072),
            "prefill computed=4096 total=131072",
        ),
        (
            RequestProgress(num_computed_tokens=1, num_prompt_tokens=2, prefill_s=0.2),
            "prefill computed=1 total=2 prefill_s=0",
        ),
    ],
)
def test_note_names_the_place_or_how_far_the_prompt_is(
    progress: RequestProgress | None, note: str
) -> None:
    assert waiting_note(progress) == note
