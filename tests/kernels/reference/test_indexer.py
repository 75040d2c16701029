"""Selection over long contexts: what it holds at one time, and where it reads."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from support.sparse_tensor import sparse_tensor
from trnrt_kernels.common.score_budget import INDEXER_BYTES
from trnrt_kernels.reference.indexer import IndexQuery, select
from trnrt_kernels.reference.paging import BatchPages, ChunkPages, pool_rows, read_rows

PAGE_SIZE, KPOOL, HEADS, SIZE = 256, 4, 2, 8
BESIDE_BYTES = 1 << 20  # what is selected, and the last tile while the next is made


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that were made inside and are alive, `cache` not."""

    def __init__(self, cache: Tensor) -> None:
        super().__init__()
        self.peak = 0
        self._cache = cache.untyped_storage().data_ptr()
        self._alive: dict[int, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor) and tensor._base is None and tensor.numel():
                address = tensor.untyped_storage().data_ptr()
                if address not in (*self._alive, self._cache):
                    self._alive[address] = tensor.untyped_storage().nbytes()
                    weakref.finalize(tensor, self._alive.pop, address, None)
        self.peak = max(self.peak, sum(self._alive.values()))
        return result


def query_of(rows: int) -> IndexQuery:
    generator = torch.Generator().manual_seed(0)
    return IndexQuery(
        torch.randn(rows, HEADS, SIZE, generator=generator),
        torch.randn(rows, HEADS, generator=generator),
    )


@pytest.mark.parametrize("num_tokens", [8192, 131_072, 1_048_576])
@pytest.mark.parametrize("is_decode", [True, False], ids=["decode", "chunk"])
def test_a_selection_holds_no_more_than_is_planned_for(num_tokens, is_decode):
    num_pages, rows = num_tokens // PAGE_SIZE, 12 if is_decode else 64
    keys = torch.randn(num_pages, PAGE_SIZE // KPOOL, SIZE, dtype=torch.bfloat16)
    table, sizes = torch.arange(num_pages), {"page_size": PAGE_SIZE, "pool_size": KPOOL}
    pages = (
        BatchPages(torch.full((rows,), num_tokens - 1), table.expand(rows, -1), **sizes)
        if is_decode
        else ChunkPages(
            torch.tensor([num_tokens - rows]), torch.tensor([rows]), table, num_rows=rows, **sizes
        )
    )
    with LiveBytes(keys) as live:
        select(query_of(rows), keys, pages, num_selected=512)
    assert INDEXER_BYTES // 64 < live.peak < INDEXER_BYTES + BESIDE_BYTES


def test_pages_beyond_2_to_31_elements_are_the_ones_that_are_meant():
    """Latents of 2.2 billion elements and 3.2 billion bytes of keys, of which a page is touched."""
    num_pages, width = 17_000, 512
    last, wrapped = num_pages - 1, (num_pages - 1) - 2**31 // (PAGE_SIZE * width)
    with sparse_tensor(num_pages, PAGE_SIZE, width) as latents:
        assert latents.numel() > 2**31
        pages = BatchPages(
            torch.tensor([3]), torch.tensor([[last]]), page_size=PAGE_SIZE, pool_size=KPOOL
        )
        pages.write_tokens(latents, torch.full((1, width), 7, dtype=torch.uint8))
        assert latents[last, 3].eq(7).all()
        assert not latents[wrapped].any()
        rows = pool_rows(latents, KPOOL)
        found = read_rows(rows, pages.physical(torch.tensor([[0]])), torch.uint8)
        assert found.view(KPOOL, width)[3].eq(7).all()
    with sparse_tensor(num_pages * 6, PAGE_SIZE // KPOOL, SIZE * 64) as raw:
        keys = raw.view(torch.float8_e4m3fn)
        assert keys.numel() > 2**31
        page = keys.shape[0] - 1
        raw[page, 5] = torch.ones(SIZE * 64).to(torch.float8_e4m3fn).view(torch.uint8)
        pages = BatchPages(
            torch.tensor([PAGE_SIZE - 1]), torch.tensor([[page]]), page_size=PAGE_SIZE, pool_size=4
        )
        query = IndexQuery(torch.ones(1, 1, SIZE * 64), torch.ones(1, 1))
        assert select(query, keys, pages, num_selected=1).tolist() == [[5]]
