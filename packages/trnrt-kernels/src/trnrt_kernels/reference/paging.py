"""Paged caches, addressed by pools.

A page holds whole pools of P tokens, so a token cache [Z pages, page_size, L] is read and written
as rows [pools, P*L] of one pool each: one index moves P neighbouring tokens. Whoever writes the
first token of a pool clears the rest of it; a pool in use therefore never holds what an earlier
owner left there, and a masked token in it is finite.

FP8 rows are moved as bytes: torch neither gathers nor scatters float8. Everything is read from
the cache, also what the same step wrote, so a value is seen as its cache dtype holds it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from trnrt_kernels.common.fp8 import TRN2_E4M3_MAX


def encode_fp8(values: Tensor, *, scale: float = 1.0) -> Tensor:
    """Round `values / scale` to e4m3 codes, clamped to what every FP8 variant in use can hold.

    Infinity becomes NaN, which reaches the logits and fails the request: clamped it would hide.
    """
    scaled = values.float() if scale == 1.0 else values.float() / scale
    finite = scaled.masked_fill(scaled.isinf(), math.nan)
    return finite.clamp(-TRN2_E4M3_MAX, TRN2_E4M3_MAX).to(torch.float8_e4m3fn)


def decode_fp8(codes: Tensor, dtype: torch.dtype, *, scale: float = 1.0) -> Tensor:
    """Give back what `encode_fp8` rounded."""
    return codes.to(dtype) if scale == 1.0 else (codes.float() * scale).to(dtype)


def pool_rows(cache_ZTL: Tensor, pool_size: int) -> Tensor:
    """View a token cache as one row per pool: [pools, P*L]."""
    pages, page_size, features = cache_ZTL.shape
    return cache_ZTL.view(pages * page_size // pool_size, pool_size * features)


def read_rows(rows_RX: Tensor, index: Tensor, dtype: torch.dtype) -> Tensor:
    """Gather rows and convert them from the cache dtype; the index is flattened."""
    if rows_RX.dtype == torch.float8_e4m3fn:
        codes = rows_RX.view(torch.uint8).index_select(0, index.flatten())
        return decode_fp8(codes.view(torch.float8_e4m3fn), dtype)
    return rows_RX.index_select(0, index.flatten()).to(dtype)


def write_rows(rows_RX: Tensor, index_N: Tensor, values_NX: Tensor) -> None:
    """Scatter rows, converted to the cache dtype."""
    if rows_RX.dtype == torch.float8_e4m3fn:
        codes = encode_fp8(values_NX).view(torch.uint8)
        rows_RX.view(torch.uint8).index_copy_(0, index_N, codes)
    else:
        rows_RX.index_copy_(0, index_N, values_NX.to(rows_RX.dtype))


class BatchPages:
    """Where one token of each of B sequences lies in the paged caches.

    Attributes:
        positions: position of each token [B].
        block_table: pages of each sequence in order [B, P].
        num_complete: complete pools of each sequence, the token's own included [B].
        num_pools: pools the block table has room for.
    """

    def __init__(
        self, positions_B: Tensor, block_table_BP: Tensor, *, page_size: int, pool_size: int
    ) -> None:
        self.pool_size = pool_size
        self.positions = positions_B
        self.block_table = block_table_BP
        self._pools_a_page = page_size // pool_size
        self._offset = positions_B % pool_size
        self.num_complete = (positions_B + 1).div(pool_size, rounding_mode="floor")
        self.num_pools = block_table_BP.shape[1] * self._pools_a_page
        self._own_rows = self.physical(self.own_pools()).squeeze(1)

    def own_pools(self) -> Tensor:
        """Logical pool of each token: [B, 1]."""
        return self.positions.div(self.pool_size, rounding_mode="floor").unsqueeze(1)

    def physical(self, pools_BN: Tensor) -> Tensor:
        """Map logical pools to pool rows."""
        page = pools_BN.div(self._pools_a_page, rounding_mode="floor")
        pages = self.block_table.gather(1, page)
        return pages * self._pools_a_page + pools_BN % self._pools_a_page

    def write_tokens(self, cache_ZTL: Tensor, new_BL: Tensor) -> None:
        """Append a token to a token cache."""
        rows = pool_rows(cache_ZTL, self.pool_size)
        kept = read_rows(rows, self._own_rows, new_BL.dtype)
        placed = self._place(kept.view(-1, self.pool_size, new_BL.shape[1]), new_BL)
        write_rows(rows, self._own_rows, placed.flatten(1))

    def extend_open_pool(self, open_pool: Tensor, slots_B: Tensor, new_BX: Tensor) -> Tensor:
        """Append a token to the open pool of each slot and return its members: [B, P, ...]."""
        kept = open_pool.index_select(0, slots_B)
        room = kept.new_zeros(kept.shape[0], 1, *kept.shape[2:])
        members = self._place(torch.cat((kept, room), dim=1), new_BX)
        open_pool.index_copy_(0, slots_B, members[:, :-1])
        return members

    def write_pools(self, cache_ZBJ: Tensor, pooled_BJ: Tensor) -> None:
        """Write what was pooled from `extend_open_pool`; it counts once the pool is complete."""
        write_rows(cache_ZBJ.view(-1, cache_ZBJ.shape[2]), self._own_rows, pooled_BJ)

    def _place(self, kept_BPX: Tensor, new_BX: Tensor) -> Tensor:
        """Put the token at its offset: kept tokens before it, zeros behind it."""
        shape = (1, self.pool_size, *(1,) * (kept_BPX.dim() - 2))
        member = torch.arange(self.pool_size, device=self.positions.device).view(shape)
        offset = self._offset.view(-1, *(1,) * (kept_BPX.dim() - 1))
        kept = torch.where(member < offset, kept_BPX, 0.0)
        return torch.where(member == offset, new_BX.unsqueeze(1), kept)


class ChunkPages:
    """Where a chunk of one sequence lies in the paged caches.

    The chunk is laid on a frame of whole pools that starts at the first token of the pool it
    continues: the first `offset` tokens come from the cache, then the live tokens, then zeros. A
    frame has room for T tokens at any offset, so its size does not depend on where it starts.

    Attributes:
        positions: position of each row [T]; rows behind the last live one repeat its position.
        block_table: pages of the sequence in order [P].
        num_complete: complete pools up to each row [T].
        num_pools: pools the block table has room for.
    """

    def __init__(
        self,
        start: Tensor,
        num_tokens: Tensor,
        block_table_P: Tensor,
        *,
        num_rows: int,
        page_size: int,
        pool_size: int,
    ) -> None:
        self.pool_size = pool_size
        self.block_table = block_table_P
        self._pools_a_page = page_size // pool_size
        self._num_rows = num_rows
        self._num_frame_pools = -(-num_rows // pool_size) + 1
        self._offset = start % pool_size
        self._end = self._offset + num_tokens
        row = torch.arange(num_rows, device=start.device)
        self.positions = start + torch.minimum(row, num_tokens - 1)
        self.num_complete = (self.positions + 1).div(pool_size, rounding_mode="floor")
        self.num_pools = block_table_P.shape[0] * self._pools_a_page
        self._frame_rows = self._rows_of_frame(start)

    def own_pools(self) -> Tensor:
        """Logical pool of each row: [T, 1]."""
        return self.positions.div(self.pool_size, rounding_mode="floor").unsqueeze(1)

    def physical(self, pools: Tensor) -> Tensor:
        """Map logical pools to pool rows."""
        page = pools.div(self._pools_a_page, rounding_mode="floor")
        pages = self.block_table.index_select(0, page.flatten()).view(pools.shape)
        return pages * self._pools_a_page + pools % self._pools_a_page

    def write_tokens(self, cache_ZTL: Tensor, new_TL: Tensor) -> None:
        """Append the live tokens to a token cache."""
        rows = pool_rows(cache_ZTL, self.pool_size)
        kept = read_rows(rows, self._frame_rows[:1], new_TL.dtype).view(self.pool_size, -1)
        write_rows(rows, self._frame_rows, self._fill(kept, new_TL).flatten(1))

    def extend_open_pool(self, open_pool: Tensor, slot: Tensor, new_TX: Tensor) -> Tensor:
        """Append the live tokens to the slot's open pool and return all pools: [F, P, ...].

        What is left open behind the last complete pool becomes the slot's open pool.
        """
        members = self._fill(open_pool.index_select(0, slot).squeeze(0), new_TX)
        first_open = self._end.div(self.pool_size, rounding_mode="floor") * self.pool_size
        member = torch.arange(self.pool_size - 1, device=slot.device)
        still_open = members.flatten(0, 1).index_select(0, first_open + member)
        open_pool.index_copy_(0, slot, still_open.unsqueeze(0))
        return members

    def write_pools(self, cache_ZBJ: Tensor, pooled_FJ: Tensor) -> None:
        """Write what was pooled from `extend_open_pool`; incomplete pools are written over."""
        write_rows(cache_ZBJ.view(-1, cache_ZBJ.shape[2]), self._frame_rows, pooled_FJ)

    def _rows_of_frame(self, start: Tensor) -> Tensor:
        """Pool row of each pool of the frame; row 0, which is scratch, where it is unused."""
        pool = torch.arange(self._num_frame_pools, device=start.device)
        logical = start.div(self.pool_size, rounding_mode="floor") + pool
        physical = self.physical(logical.clamp(max=self.num_pools - 1))
        return torch.where(pool * self.pool_size < self._end, physical, 0)

    def _fill(self, kept_PX: Tensor, new_TX: Tensor) -> Tensor:
        """Lay kept and new tokens out on the frame: [F, P, ...]."""
        size = self._num_frame_pools * self.pool_size
        place = torch.arange(size, device=new_TX.device)
        new = new_TX.index_select(0, (place - self._offset).clamp(0, self._num_rows - 1))
        kept = kept_PX.index_select(0, place.clamp(max=kept_PX.shape[0] - 1))
        column = (size, *(1,) * (new_TX.dim() - 1))
        framed = torch.where((place < self._offset).view(column), kept, new)
        framed = torch.where((place < self._end).view(column), framed, 0.0)
        return framed.view(self._num_frame_pools, self.pool_size, *new_TX.shape[1:])


Pages = BatchPages | ChunkPages
