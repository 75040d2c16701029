"""Records of kind `sampler`: rows of logits, drawn from together."""

from __future__ import annotations

from typing import Any

import torch

from case_drivers.outcome import PASSED, Outcome, failed
from trnrt_engine.api import EngineRequest, SamplingParams
from trnrt_engine.batch import Draw, sampling_inputs
from trnrt_kernels.sampling import SamplingState, sample


def run(record: dict[str, Any]) -> Outcome:
    """Sample the rows as one batch, `repeat` times."""
    rows, wanted = record["rows"], record["expect"]["ids"]
    logits_BV = torch.tensor([row["logits"] for row in rows])
    draws = [
        Draw(_request(index, row), slot=index, output_index=0, stop_ids=frozenset())
        for index, row in enumerate(rows)
    ]
    seen: set[tuple[int, ...]] = set()
    for _ in range(record["repeat"]):
        state = SamplingState.allocate(len(rows), logits_BV.shape[1])
        for index in range(len(rows)):
            state.load_row(index, [], [], {})
        outputs = sample(logits_BV, sampling_inputs(draws, num_rows=len(rows)), state)
        seen.add(tuple(outputs.token_ids_B.tolist()))
    if len(seen) != 1:
        return failed(f"draws differ from one time to the next: {sorted(seen)}")
    [ids] = seen
    wrong = [i for i, (a, b) in enumerate(zip(ids, wanted, strict=True)) if b not in (a, "*")]
    return failed(f"rows {wrong} drew {ids}") if wrong else PASSED


def _request(index: int, row: dict[str, Any]) -> EngineRequest:
    sampling = {key: value for key, value in row.items() if key != "logits"}
    return EngineRequest(request_id=str(index), token_ids=[0], sampling=SamplingParams(**sampling))
