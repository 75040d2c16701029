"""Records of kind `index_math`: addresses beyond 32 bits, as the caches compute and use them."""

from __future__ import annotations

from typing import Any

import torch

from case_drivers.outcome import PASSED, Outcome, failed
from support.sparse_tensor import sparse_tensor
from trnrt_kernels.reference.paging import BatchPages, read_rows, write_rows


def run(record: dict[str, Any]) -> Outcome:
    """Compute the address of a record, or touch the last element of its cache."""
    wanted = record["expect"]
    match record:
        case {"page": page, "stride_bytes": stride}:
            found = {"byte_offset": _address(page, 0, page_size=stride)}
        case {"page": page, "page_tokens": page_size, "token_index_in_page": token}:
            found = {"token_slot": _address(page, token, page_size=page_size)}
        case {"tokens": tokens, "heads": heads, "head_dim": size}:
            found = {"elements": _elements(tokens, heads * size)}
        case _:
            return failed(f"the driver does not know {sorted(record)}")
    return PASSED if found == wanted else failed(f"is {found}")


def _address(page: int, entry: int, *, page_size: int) -> int:
    """Row of an entry of a page; pages hold `page_size` pools of one token."""
    pages = BatchPages(
        torch.tensor([entry]), torch.tensor([[page]]), page_size=page_size, pool_size=1
    )
    row = pages.physical(torch.tensor([[entry]]))
    if row.dtype != torch.int64:
        raise TypeError(f"addresses are {row.dtype}")
    return int(row)


def _elements(rows: int, width: int) -> int:
    """Elements of a cache whose last row was written and read, and whose others were not."""
    with sparse_tensor(rows, width) as cache:
        index, ones = torch.tensor([rows - 1]), torch.ones(1, width, dtype=torch.uint8)
        write_rows(cache, index, ones)
        if not torch.equal(read_rows(cache, index, torch.uint8), ones) or cache[: 2**10].any():
            raise ValueError("a row was written elsewhere")
        return cache.numel()
