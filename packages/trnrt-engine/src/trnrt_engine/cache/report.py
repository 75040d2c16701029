"""What a request found in the cache, and why not more."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

DEVICE = "device"


class Reason(StrEnum):
    """Why a prompt hit as it did.

    HIT: a bundle was used. COLD: nothing of it is known. NO_BUNDLE: its pages are, but no state
    behind them. EVICTED: there was a bundle and it was given up for room. EXPIRED: its time to
    live was over. NO_ROOM: there was a bundle and no room for the copy of its page. MISMATCH: one
    was found and refused, for it was not what its place promised. TOO_SHORT: no grid position
    leaves a token to compute. CACHING_OFF: the request or the engine does not use the cache.

    That another salt knows the prompt is no reason: telling would let one tenant ask what another
    one sent.
    """

    HIT = "hit"
    COLD = "cold"
    NO_BUNDLE = "no_bundle"
    EVICTED = "evicted"
    EXPIRED = "expired"
    NO_ROOM = "no_room"
    MISMATCH = "mismatch"
    TOO_SHORT = "too_short"
    CACHING_OFF = "caching_off"


@dataclass(frozen=True, slots=True)
class MatchReport:
    """What admission found.

    Fields:
        kv_depth: prompt tokens on the grid whose pages are known.
        state_depth: position of the bundle that was used.
        replayed: tokens with pages that are computed again for want of a bundle behind them.
        tier: where the bundle lay; empty without one.
    """

    kv_depth: int
    state_depth: int
    reason: Reason

    @property
    def replayed(self) -> int:
        """Tokens computed again though their pages are known."""
        return self.kv_depth - self.state_depth

    @property
    def tier(self) -> str:
        """Where the bundle lay; empty without one."""
        return DEVICE if self.state_depth else ""


NOTHING = MatchReport(0, 0, Reason.CACHING_OFF)


@dataclass(slots=True)
class CacheCounters:
    """What a cache counts; none ever decreases.

    Fields:
        hit_tokens: prompt tokens not computed. lookups: admissions by reason.
        evicted_pages, evicted_bundles: given up for room.
        skipped_bundles: wanted, and there was no slot or no place in the chunk's exports.
    """

    hit_tokens: int = 0
    lookups: Counter[Reason] = field(default_factory=Counter)
    evicted_pages: int = 0
    evicted_bundles: int = 0
    skipped_bundles: int = 0
