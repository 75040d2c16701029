"""Room in the caches: promised at the start, taken by and by, given back whole."""

from __future__ import annotations

import pytest

from trnrt_engine.api import CacheControl
from trnrt_engine.cache.manager import CacheManager
from trnrt_engine.cache.sequence import Admission, SequenceCache
from trnrt_engine.errors import IntegrityError


def cache_of(*, num_pages: int = 8, num_state_slots: int = 2) -> CacheManager:
    return CacheManager(
        num_pages=num_pages, page_size=64, num_state_slots=num_state_slots, num_scratch=4
    )


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (64, 1), (65, 2), (512, 8)])
def test_pages_hold_their_tokens(tokens: int, pages: int) -> None:
    assert cache_of().pages_for(tokens) == pages


def test_sequence_grows_into_what_it_was_promised_and_beyond_while_there_is_room() -> None:
    cache = cache_of()
    sequence = cache.admit(Admission(max_tokens=200))
    assert sequence.page_ids == []
    cache.grow(sequence, 64)
    cache.grow(sequence, 64)
    assert len(sequence.page_ids) == 1
    cache.grow(sequence, 200)
    assert len(set(sequence.page_ids)) == 4
    assert min(sequence.page_ids) >= 4
    cache.check_integrity([sequence])
    other = cache.admit(Admission(max_tokens=64))
    assert cache.grow(sequence, 7 * 64)
    cache.check_integrity([sequence, other])
    assert not cache.grow(sequence, 8 * 64)
    assert len(sequence.page_ids) == 7
    assert cache.grow(other, 64)
    cache.check_integrity([sequence, other])
    cache.release(other)
    assert cache.grow(sequence, 8 * 64)
    cache.release(sequence)
    cache.check_integrity([])
    assert cache.num_free_pages == 8


def test_no_room_is_none_and_takes_nothing() -> None:
    cache = cache_of()
    first = cache.admit(Admission(max_tokens=65))
    assert cache.admit(Admission(max_tokens=449)) is None
    second = cache.admit(Admission(max_tokens=384))
    assert cache.admit(Admission(max_tokens=0)) is None  # no slot
    cache.check_integrity([first, second])
    assert cache.num_free_state_slots == 0
    cache.release(first)
    assert cache.admit(Admission(max_tokens=128)) is not None


def test_forgotten_holder_is_found() -> None:
    cache = cache_of()
    sequence = cache.admit(Admission(max_tokens=100))
    with pytest.raises(IntegrityError):
        cache.check_integrity([])
    sequence.num_reserved_pages -= 1
    with pytest.raises(IntegrityError, match="count on 1 reserved pages, the pool on 2"):
        cache.check_integrity([sequence])


def test_a_pin_does_not_take_what_was_promised() -> None:
    cache = CacheManager(
        num_pages=2, page_size=256, num_state_slots=2, num_scratch=4, num_bundle_slots=8
    )
    text = [7] * 300

    def publish(ask: Admission) -> SequenceCache:
        sequence, end = cache.admit(ask), len(ask.token_ids)
        assert cache.grow(sequence, end)
        cache.plan_exports(sequence, 0, end)
        return sequence

    known = publish(Admission(max_tokens=300, token_ids=text))
    cache.publish(known, 300)
    cache.release(known)
    assert cache.num_cached_pages == 1
    pin = CacheControl(pin=True, session_id="s")
    # Its bundle lies in the page that is known: too deep for a hit, and held by nobody.
    pinning = publish(Admission(max_tokens=130, token_ids=text[:130], control=pin))
    other = cache.admit(Admission(max_tokens=100, token_ids=[8] * 100))
    cache.publish(pinning, 130)
    cache.check_integrity([pinning, other])
    assert cache.grow(other, 100)
    cache.check_integrity([pinning, other])
