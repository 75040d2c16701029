"""An engine core whose runner builds real tensors for the counting model."""

from __future__ import annotations

import dataclasses

from support.counting_core import NUM_SCRATCH, GatedRunner, counting_core
from support.paged_counter import VOCAB_SIZE
from support.torch_counter import TorchCounter
from trnrt_engine.batch import Buckets
from trnrt_engine.core import EngineCore
from trnrt_engine.runner import Runner
from trnrt_kernels.sampling import SamplingState

PAGE_SIZE = 16


def tensor_core(
    *, num_pages: int = 64, max_num_seqs: int = 4, num_steps_ahead: int = 0, **fields
) -> tuple[EngineCore, TorchCounter]:
    """Return a core, and the model it runs."""
    num_slots = NUM_SCRATCH + max_num_seqs + num_steps_ahead
    model = TorchCounter(
        num_pages=NUM_SCRATCH + num_pages, page_size=PAGE_SIZE, num_slots=num_slots
    )
    runner = Runner(
        model,
        caches=None,
        sampling_state=SamplingState.allocate(num_slots, VOCAB_SIZE),
        buckets=Buckets(prefill_rows=(16, 64), decode_rows=(1, 2, 4), context_pages=(1, 4, 8, 32)),
        num_slots=num_slots,
    )
    core = counting_core(
        GatedRunner(page_size=PAGE_SIZE),
        num_pages=num_pages,
        page_size=PAGE_SIZE,
        max_num_seqs=max_num_seqs,
        num_steps_ahead=num_steps_ahead,
        **fields,
    )
    return dataclasses.replace(core, runner=runner), model
