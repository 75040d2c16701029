"""The pool of pages: which are free, which are promised, which are in use.

A page is reserved at admission and allocated when the sequence reaches it. What is reserved is
always free or can be evicted from the prefix cache at once, so an admitted sequence never waits
for a page.
"""

from __future__ import annotations

from trnrt_engine.errors import IntegrityError


class PagePool:
    """Hand out page ids `first_id .. first_id + num_pages - 1`; ids below are scratch."""

    def __init__(self, num_pages: int, *, first_id: int) -> None:
        if num_pages < 1:
            raise ValueError(f"num_pages is {num_pages}; a pool holds at least one page")
        self.num_pages = num_pages
        self._first_id = first_id
        self._free = list(range(first_id + num_pages - 1, first_id - 1, -1))
        self._is_free = bytearray(b"\1") * num_pages
        self._num_reserved = 0

    @property
    def num_free(self) -> int:
        """Pages that hold nothing, reserved ones included."""
        return len(self._free)

    @property
    def num_reserved(self) -> int:
        """Pages promised to admitted sequences."""
        return self._num_reserved

    def num_available(self, num_evictable: int = 0) -> int:
        """Count the free pages, and those that could be evicted, nobody was promised."""
        return len(self._free) + num_evictable - self._num_reserved

    def reserve(self, count: int, *, num_evictable: int = 0) -> None:
        """Promise `count` pages.

        Raises:
            IntegrityError: more than `num_available`.
        """
        available = self.num_available(num_evictable)
        if count > available:
            raise IntegrityError(f"reserving {count} pages of {available} available")
        self._num_reserved += count

    def unreserve(self, count: int) -> None:
        """Take back a promise for `count` pages."""
        if count > self._num_reserved:
            raise IntegrityError(f"unreserving {count} pages of {self._num_reserved} reserved")
        self._num_reserved -= count

    def allocate_reserved(self) -> int:
        """Turn one reserved page into an allocated one and return its id.

        Raises:
            IntegrityError: none is free; evict one first.
        """
        if not self._free:
            raise IntegrityError("no page is free")
        self.unreserve(1)
        page_id = self._free.pop()
        self._is_free[page_id - self._first_id] = 0
        return page_id

    def next_free(self, count: int) -> list[int]:
        """List the free pages that are given out next, at most `count`."""
        return self._free[-count:]

    def free(self, page_ids: list[int]) -> None:
        """Give pages back.

        Raises:
            IntegrityError: a page is free already or not of this pool.
        """
        for page_id in page_ids:
            index = page_id - self._first_id
            if not 0 <= index < self.num_pages or self._is_free[index]:
                raise IntegrityError(f"freeing page {page_id}, which is not in use")
            self._is_free[index] = 1
            self._free.append(page_id)

    def check_integrity(self, in_use: list[int], *, num_evictable: int = 0) -> None:
        """Prove that `in_use` (every holder's pages) and the free list are the whole pool.

        Raises:
            IntegrityError: a page is missing, held twice, or more is reserved than can be had.
        """
        if len(set(in_use)) != len(in_use):
            raise IntegrityError("a page has two holders")
        if sorted(in_use + self._free) != list(
            range(self._first_id, self._first_id + self.num_pages)
        ):
            raise IntegrityError(
                f"{len(in_use)} pages in use and {len(self._free)} free do not make "
                f"{self.num_pages}"
            )
        if sum(self._is_free) != len(self._free):
            raise IntegrityError("free flags and free list differ")
        if not 0 <= self._num_reserved <= len(self._free) + num_evictable:
            raise IntegrityError(
                f"{self._num_reserved} reserved of {len(self._free)} free and {num_evictable} "
                f"evictable pages"
            )
