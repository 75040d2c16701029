"""Pools of state slots: one per admitted sequence, one per bundle.

A slot indexes the recurrent states, the conv tails and the open index pools; that of a sequence
also the sampling state. It needs no clearing: a sequence at position 0 ignores what a slot holds.
"""

from __future__ import annotations

from trnrt_engine.errors import IntegrityError


class StateSlots:
    """Hand out slot ids `first_id .. first_id + num_slots - 1`; ids below are scratch."""

    def __init__(self, num_slots: int, *, first_id: int) -> None:
        if num_slots < 0:
            raise ValueError(f"num_slots is {num_slots}, must be at least 0")
        self.num_slots = num_slots
        self._first_id = first_id
        self._free = list(range(first_id + num_slots - 1, first_id - 1, -1))

    @property
    def num_free(self) -> int:
        """Slots nobody holds."""
        return len(self._free)

    def allocate(self) -> int | None:
        """Take a slot; None when all are held."""
        return self._free.pop() if self._free else None

    def next_free(self, count: int) -> list[int]:
        """List the free slots that are given out next, at most `count`."""
        return self._free[-count:]

    def free(self, slot: int) -> None:
        """Give a slot back.

        Raises:
            IntegrityError: the slot is free already or not of this pool.
        """
        if not 0 <= slot - self._first_id < self.num_slots or slot in self._free:
            raise IntegrityError(f"freeing state slot {slot}, which is not in use")
        self._free.append(slot)

    def check_integrity(self, in_use: list[int]) -> None:
        """Prove that `in_use` and the free slots are all there are.

        Raises:
            IntegrityError: a slot is missing or held twice.
        """
        expected = list(range(self._first_id, self._first_id + self.num_slots))
        if sorted(in_use + self._free) != expected:
            raise IntegrityError(
                f"state slots in use {sorted(in_use)} and free {sorted(self._free)} do not "
                f"make {self.num_slots}"
            )
