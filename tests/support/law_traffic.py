"""The traffic of the law: what may be asked and what an example runs on, as hypothesis draws it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

from support.law_box import MAX_OUTPUT, MAX_PROMPT, VOCAB_SIZE, Setup
from trnrt_engine.api import CacheControl, CacheMode

SESSIONS = ("s", "t")
# Around every border of the grid (64) and of the largest page (256), and some in between.
BORDERS = [border + by for border in range(64, 577, 64) for by in (-1, 0, 1)]
LENGTHS = [150, *BORDERS, 1, 2, 30, 100, 300, MAX_PROMPT]
MORE = [0, 1, 2, 20, 63, 64, 65, 130, 257]
SAMPLINGS: tuple[dict[str, object], ...] = (
    {"num_logprobs": 5},
    {"num_logprobs": 20, "min_tokens": 1},
    {"temperature": 1.0, "seed": 3, "num_logprobs": 5},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 50, "seed": 4, "num_logprobs": 0},
    {"temperature": 1.2, "frequency_penalty": 0.7, "presence_penalty": 0.3, "num_logprobs": 5},
    {"repetition_penalty": 1.3, "logit_bias": {5: 3.0, 9: -100.0}, "num_logprobs": 5},
)


def tokens_of(seed: int, length: int) -> list[int]:
    """Random tokens; a longer text of a seed begins with the shorter ones."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB_SIZE, (MAX_PROMPT,), generator=generator)[:length].tolist()


@dataclass(frozen=True)
class Ask:
    """A request: the beginning of an earlier text, and something new behind it.

    Fields:
        base: number of that text; texts are the stems and all prompts and answers so far.
        keep: tokens of it. branch, more: seed and number of the tokens behind.
        num_prior: outputs that were emitted elsewhere, at most.
    """

    base: int = 0
    keep: int = 150
    branch: int = 0
    more: int = 0
    max_tokens: int = 2
    num_prior: int = 0
    sampling: int = 0
    marks: tuple[int, ...] = ()
    cache: CacheControl = field(default_factory=CacheControl)
    cache_salt: str = ""
    priority: int = 0
    tenant: str = ""
    deadline_s: float | None = None


setups = st.builds(
    Setup,
    index_kpool=st.sampled_from([4, 16]),
    page_size=st.sampled_from([64, 256, 128]),
    extra_pages=st.sampled_from([24, 8, 3, 1, 0]),
    num_bundle_slots=st.sampled_from([12, 5, 2, 24, 0]),
    max_num_seqs=st.integers(1, 4),
    token_budget=st.sampled_from([128, 64, 192, 320, 512]),
    num_steps_ahead=st.sampled_from([0, 1]),
    host_kib=st.sampled_from([0, 8192, 512]),
    disk_kib=st.sampled_from([0, 8192, 512]),
    swap_kib=st.sampled_from([8192, 256, 0]),
    num_engines=st.sampled_from([1, 1, 2]),
    prefill_ahead=st.integers(0, 2),
    stall_ms=st.sampled_from([500, 20, 1]),
    tick_s=st.sampled_from([0.0, 0.004]),
)
controls = st.one_of(
    st.just(CacheControl()),
    st.builds(CacheControl, mode=st.sampled_from([CacheMode.READ, CacheMode.OFF])),
    st.builds(CacheControl, ttl_s=st.sampled_from([0.1, 2.0])),
    st.builds(
        CacheControl,
        pin=st.just(True),
        session_id=st.sampled_from(SESSIONS),
        ttl_s=st.sampled_from([None, 2.0]),
    ),
)
asks = st.builds(
    Ask,
    base=st.integers(0, 12),
    keep=st.sampled_from(LENGTHS),
    branch=st.integers(0, 2),
    more=st.sampled_from(MORE),
    max_tokens=st.integers(1, MAX_OUTPUT),
    num_prior=st.sampled_from([0, 0, 0, 1, 3]),
    sampling=st.integers(0, len(SAMPLINGS) - 1),
    marks=st.lists(st.sampled_from(LENGTHS), max_size=3, unique=True).map(sorted).map(tuple),
    cache=controls,
    cache_salt=st.sampled_from(["", "", "", "x"]),
    priority=st.sampled_from([0, 0, -1, 5]),
    tenant=st.sampled_from(["", "a", "b"]),
    deadline_s=st.sampled_from([None, None, None, None, 5.0, 0.1]),
)
some_asks = st.lists(asks, min_size=1, max_size=3)
engine_numbers = st.integers(0, 1)
