"""Records of kind `indexer`: one chunk selects the same pools, however its rows are cut."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch

from case_drivers.outcome import PASSED, Outcome, failed
from trnrt_kernels.common import score_budget
from trnrt_kernels.reference.indexer import IndexQuery, select
from trnrt_kernels.reference.paging import ChunkPages

HEADS, HEAD_SIZE, PAGE_SIZE = 4, 16, 16


def run(record: dict[str, Any]) -> Outcome:
    """Select for the last rows of a context, at most so many rows at one time."""
    context, rows = record["context"], record["chunk_rows"]
    generator = torch.Generator().manual_seed(0)
    num_pages = -(-context // PAGE_SIZE)
    pages = ChunkPages(
        torch.tensor([context - rows]),
        torch.tensor([rows]),
        torch.randperm(num_pages, generator=generator),
        num_rows=rows,
        page_size=PAGE_SIZE,
        pool_size=1,
    )
    query = IndexQuery(
        torch.randn(rows, HEADS, HEAD_SIZE, generator=generator),
        torch.randn(rows, HEADS, generator=generator),
    )
    keys = torch.randn(num_pages, PAGE_SIZE, HEAD_SIZE, generator=generator)
    selected = []
    for limit in record["row_limits"]:
        budget = limit * score_budget.SCORE_BYTES * pages.num_pools
        with mock.patch.object(score_budget, "SCORE_BUDGET_BYTES", budget):
            if score_budget.score_rows(rows, num_pools=pages.num_pools) > limit:
                return failed(f"more than {limit} rows at one time")
            selected.append(select(query, keys, pages, num_selected=record["topk"]))
    found = {"same_topk_sets": all(torch.equal(each, selected[0]) for each in selected)}
    return PASSED if found == record["expect"] else failed(f"is {found}")
