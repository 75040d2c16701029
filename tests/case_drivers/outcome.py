"""What a case record came to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How a record ended; the value is what the runner prints."""

    PASS = "pass"
    FAIL = "fail"
    NOT_YET = "not-yet"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one record; `reason` is empty only for a pass."""

    status: Status
    reason: str = ""


PASSED = Outcome(Status.PASS)


def failed(reason: str) -> Outcome:
    return Outcome(Status.FAIL, reason)


def not_yet(reason: str) -> Outcome:
    return Outcome(Status.NOT_YET, reason)
