"""Records of kind `memory_plan`: rows of scores that a budget holds, and that it is planned for."""

from __future__ import annotations

from typing import Any

from case_drivers.outcome import PASSED, Outcome, failed
from support.released import released_config
from trnrt_kernels.common.score_budget import INDEXER_BYTES, rows_at_once
from trnrt_kernels.memory_plan import plan_memory
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.serving import ServingShape


def run(record: dict[str, Any]) -> Outcome:
    """Cut a chunk's rows, and look the buffers up in the plan of the released model."""
    rows = rows_at_once(
        record["chunk_rows"],
        row_bytes=record["context"] * record["bytes_per_score"],
        budget_bytes=record["budget_bytes"],
    )
    found = {"max_rows_at_once": rows}
    if found != record["expect"]:
        return failed(f"is {found}")
    config = Glm5NextConfig.from_dict(released_config())
    shape = ServingShape.resolve(
        window=config.max_position_embeddings,
        index_kpool=config.index_kpool,
        backend="cpu",
        dtype="bfloat16",
    )
    planned = dict(plan_memory(config, shape).rows).get("index scores")
    return PASSED if planned == INDEXER_BYTES else failed(f"the plan reserves {planned} bytes")
