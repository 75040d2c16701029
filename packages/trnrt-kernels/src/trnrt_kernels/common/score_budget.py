"""How much memory the sparse indexer may use at one time, whatever the context is. No torch.

A query scores every pool of its context, so fewer rows of scores exist at one time as the context
grows. What rows are computed from and searched with is made in tiles that stay in the CPU cache.
The memory plan reserves the whole.
"""

from __future__ import annotations

SCORE_BUDGET_BYTES = 16 << 20  # rows of scores
TILE_BYTES = 1 << 20  # keys and dot products, then what a search needs beside the scores
INDEXER_BYTES = SCORE_BUDGET_BYTES + TILE_BYTES

SCORE_BYTES = 4
CANDIDATE_BYTES = 40  # of one entry among which a search decides: score, index, keys


def rows_at_once(num_rows: int, *, row_bytes: int, budget_bytes: int) -> int:
    """Rows that fit a budget, at least one and at most all."""
    return max(1, min(num_rows, budget_bytes // row_bytes))


def score_rows(num_rows: int, *, num_pools: int) -> int:
    """Queries scored at one time: a power of two if not all, so that tiles are alike."""
    row_bytes = SCORE_BYTES * num_pools
    rows = rows_at_once(num_rows, row_bytes=row_bytes, budget_bytes=SCORE_BUDGET_BYTES)
    return rows if rows == num_rows else 1 << (rows.bit_length() - 1)
