"""The page pool and its accounting."""

from __future__ import annotations

import pytest

from trnrt_engine.cache.pages import PagePool
from trnrt_engine.errors import IntegrityError


def test_pages_are_handed_out_once_and_above_scratch() -> None:
    pool = PagePool(5, first_id=3)
    pool.reserve(5)
    pages = [pool.allocate_reserved() for _ in range(5)]
    assert sorted(pages) == [3, 4, 5, 6, 7]
    assert (pool.num_free, pool.num_reserved, pool.num_available()) == (0, 0, 0)
    pool.check_integrity(pages)
    pool.free(pages)
    pool.check_integrity([])


def test_reserved_pages_are_free_and_not_available() -> None:
    pool = PagePool(4, first_id=0)
    pool.reserve(3)
    assert (pool.num_free, pool.num_available()) == (4, 1)
    assert pool.num_available(2) == 3
    with pytest.raises(IntegrityError, match="reserving 2 pages of 1"):
        pool.reserve(2)


def test_what_can_be_evicted_can_be_promised_but_not_handed_out() -> None:
    pool = PagePool(2, first_id=0)
    pool.reserve(2)
    held = [pool.allocate_reserved() for _ in range(2)]
    pool.reserve(1, num_evictable=1)
    pool.check_integrity(held, num_evictable=1)
    with pytest.raises(IntegrityError, match="1 reserved of 0 free and 0 evictable"):
        pool.check_integrity(held)
    with pytest.raises(IntegrityError, match="no page is free"):
        pool.allocate_reserved()
    pool.free(held[:1])
    assert pool.allocate_reserved() == held[0]


def test_page_that_is_not_in_use_cannot_be_freed() -> None:
    pool = PagePool(4, first_id=2)
    pool.reserve(1)
    page = pool.allocate_reserved()
    pool.free([page])
    for wrong in (page, 1, 6, 0):
        with pytest.raises(IntegrityError, match=f"freeing page {wrong}"):
            pool.free([wrong])


def test_unreserved_page_cannot_be_allocated() -> None:
    with pytest.raises(IntegrityError, match="unreserving 1 pages of 0"):
        PagePool(4, first_id=0).allocate_reserved()


def test_lost_and_doubly_held_pages_are_found() -> None:
    pool = PagePool(4, first_id=0)
    pool.reserve(2)
    pages = [pool.allocate_reserved() for _ in range(2)]
    with pytest.raises(IntegrityError, match="1 pages in use and 2 free do not make 4"):
        pool.check_integrity(pages[:1])
    with pytest.raises(IntegrityError, match="two holders"):
        pool.check_integrity([pages[0], *pages])


def test_empty_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one page"):
        PagePool(0, first_id=0)
