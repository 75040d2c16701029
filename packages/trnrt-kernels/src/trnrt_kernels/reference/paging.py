"""Addressing of paged caches by pools.

A page holds whole pools of P tokens, so a cache [Z pages, T tokens, L] is read and written as rows
[Z*T/P, P*L] of one pool each: one index moves P neighbouring tokens. Whoever writes the first
token of a pool clears the rest of it; a pool in use therefore never holds what an earlier owner
left there, and a masked token in it is finite.

FP8 rows are moved as bytes: torch neither gathers nor scatters float8.
"""

from __future__ import annotations

import torch
from torch import Tensor

FP8_MAX = 240.0  # largest e4m3 value that every FP8 variant in use can hold


def pool_rows(cache_ZTL: Tensor, pool_size: int) -> Tensor:
    """View a token cache as one row per pool: [pools, P*L]."""
    pages, page_size, features = cache_ZTL.shape
    return cache_ZTL.view(pages * page_size // pool_size, pool_size * features)


def physical_pools(block_table: Tensor, pools: Tensor, pools_a_page: int) -> Tensor:
    """Map logical pools to pool rows.

    Args:
        block_table: page ids [pages], or [B, pages] with a row for each row of `pools`.
        pools: logical pool ids [n] or [B, n].
    """
    page = torch.div(pools, pools_a_page, rounding_mode="floor")
    pages = block_table[page] if block_table.dim() == 1 else block_table.gather(1, page)
    return pages * pools_a_page + pools % pools_a_page


def all_pools(block_table: Tensor, pools_a_page: int) -> Tensor:
    """Pool rows of every page, in order: [..., pages * pools_a_page]."""
    pool = torch.arange(pools_a_page, device=block_table.device)
    return (block_table.unsqueeze(-1) * pools_a_page + pool).flatten(-2)


def read_rows(rows_RX: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    """Gather rows and convert them from the cache dtype; the index is flattened."""
    if rows_RX.dtype == torch.float8_e4m3fn:
        codes = rows_RX.view(torch.uint8).index_select(0, index.flatten())
        return codes.view(torch.float8_e4m3fn).to(dtype)
    return rows_RX.index_select(0, index.flatten()).to(dtype)


def write_rows(rows_RX: Tensor, index_N: Tensor, values_NX: Tensor) -> None:
    """Scatter rows, converted to the cache dtype; FP8 is clamped to what every variant holds."""
    if rows_RX.dtype == torch.float8_e4m3fn:
        codes = values_NX.float().clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
        rows_RX.view(torch.uint8).index_copy_(0, index_N, codes.view(torch.uint8))
    else:
        rows_RX.index_copy_(0, index_N, values_NX.to(rows_RX.dtype))


def place_token(kept_BPX: Tensor, new_BX: Tensor, offset_B: Tensor) -> Tensor:
    """Put one token into each row's pool at its offset: kept before it, zeros behind it."""
    member = torch.arange(kept_BPX.shape[1], device=offset_B.device).unsqueeze(0)
    offset = offset_B.unsqueeze(1)
    shape = (*member.shape, *(1,) * (kept_BPX.dim() - 2))
    kept = torch.where((member < offset).view(-1, *shape[1:]), kept_BPX, 0.0)
    return torch.where((member == offset).view(-1, *shape[1:]), new_BX.unsqueeze(1), kept)


class ChunkFrame:
    """A chunk of one sequence on the grid of its pools.

    The frame starts at the first token of the pool the chunk continues; its first `offset` tokens
    come from the cache, then the chunk's live tokens, then zeros. It has room for T tokens at any
    offset, so its size does not depend on where the chunk starts.
    """

    def __init__(self, start: Tensor, num_tokens: Tensor, rows: int, pool_size: int) -> None:
        self.start = start
        self.num_tokens = num_tokens
        self.pool_size = pool_size
        self.num_pools = -(-rows // pool_size) + 1
        self.offset = start % pool_size
        self.end = self.offset + num_tokens
        self.first_pool = torch.div(start, pool_size, rounding_mode="floor")
        self.rows = rows

    def positions(self) -> Tensor:
        """Position of each row of the chunk; rows behind the last live one repeat its position."""
        row = torch.arange(self.rows, device=self.start.device)
        return self.start + torch.minimum(row, self.num_tokens - 1)

    def fill(self, kept_PX: Tensor, new_TX: Tensor) -> Tensor:
        """Lay kept and new tokens out by pool: [pools, P, ...]."""
        size = self.num_pools * self.pool_size
        place = torch.arange(size, device=new_TX.device)
        token = (place - self.offset).clamp(0, self.rows - 1)
        kept = kept_PX.index_select(0, place.clamp(max=kept_PX.shape[0] - 1))
        column = (size, *(1,) * (new_TX.dim() - 1))
        framed = torch.where(
            (place < self.offset).view(column), kept, new_TX.index_select(0, token)
        )
        framed = torch.where((place < self.end).view(column), framed, 0.0)
        return framed.view(self.num_pools, self.pool_size, *new_TX.shape[1:])

    def open_members(self, frame_NPX: Tensor) -> Tensor:
        """The P-1 tokens from the start of the pool that is open after the chunk."""
        open_pool = torch.div(self.end, self.pool_size, rounding_mode="floor")
        member = torch.arange(self.pool_size - 1, device=open_pool.device)
        return frame_NPX.flatten(0, 1).index_select(0, open_pool * self.pool_size + member)

    def rows_to_write(self, block_table_P: Tensor, pools_a_page: int) -> Tensor:
        """Physical row of each pool of the frame; row 0, which is scratch, where it is unused."""
        pool = torch.arange(self.num_pools, device=block_table_P.device)
        logical = (self.first_pool + pool).clamp(max=block_table_P.shape[0] * pools_a_page - 1)
        physical = physical_pools(block_table_P, logical, pools_a_page)
        return torch.where(pool * self.pool_size < self.end, physical, 0)
