"""The pool of state slots."""

from __future__ import annotations

import pytest

from trnrt_engine.cache.states import StateSlots
from trnrt_engine.errors import IntegrityError


def test_slots_run_out_and_come_back() -> None:
    slots = StateSlots(3, first_id=2)
    taken = [slots.allocate() for _ in range(3)]
    assert sorted(taken) == [2, 3, 4]
    assert slots.allocate() is None
    slots.check_integrity(taken)
    slots.free(taken[1])
    assert slots.num_free == 1
    assert slots.allocate() == taken[1]


def test_slot_that_is_not_in_use_cannot_be_freed() -> None:
    slots = StateSlots(2, first_id=1)
    for wrong in (0, 1, 3):
        with pytest.raises(IntegrityError, match=f"state slot {wrong}"):
            slots.free(wrong)


def test_lost_slot_is_found() -> None:
    slots = StateSlots(2, first_id=1)
    slots.allocate()
    with pytest.raises(IntegrityError, match="do not make 2"):
        slots.check_integrity([])
