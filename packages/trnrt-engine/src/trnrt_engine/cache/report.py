"""What a request found in the cache, and why not more."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

DEVICE = "device"
HOST = "host"
DISK = "disk"


class Reason(StrEnum):
    """Why a prompt hit as it did.

    HIT: a bundle was used. TURN_END: the one where the session's last turn ended, in decode form.
    COLD: nothing of it is known. NO_BUNDLE: its pages are, but no state
    behind them. EVICTED: there was a bundle and it was given up for room. EXPIRED: its time to
    live was over. NO_ROOM: there was a bundle and no room for the copy of its page, or to load it.
    MISMATCH: one was found and refused, for it was not what its place promised. LOAD_LATE,
    LOAD_FAILED: a lower tier had a deeper one, and loading it took too long, or a part of it was
    missing, damaged or another's; what was hit instead, if anything, lies on the device.
    TOO_SHORT: no grid position leaves a token to compute. CACHING_OFF: the request or the engine
    does not use the cache.

    That another salt knows the prompt is no reason: telling would let one tenant ask what another
    one sent.
    """

    HIT = "hit"
    TURN_END = "turn_end"
    COLD = "cold"
    NO_BUNDLE = "no_bundle"
    EVICTED = "evicted"
    EXPIRED = "expired"
    NO_ROOM = "no_room"
    MISMATCH = "mismatch"
    LOAD_LATE = "load_late"
    LOAD_FAILED = "load_failed"
    TOO_SHORT = "too_short"
    CACHING_OFF = "caching_off"


@dataclass(frozen=True, slots=True)
class MatchReport:
    """What admission found.

    Fields:
        kv_depth: prompt tokens on the grid whose pages are known.
        state_depth: position of the bundle that was used.
        tier: where the bundle lay; empty without one.
    """

    kv_depth: int
    state_depth: int
    reason: Reason
    tier: str = ""

    @property
    def replayed(self) -> int:
        """Tokens computed again though their pages are known."""
        return self.kv_depth - self.state_depth


NOTHING = MatchReport(0, 0, Reason.CACHING_OFF)


@dataclass(slots=True)
class CacheCounters:
    """What a cache counts; none ever decreases.

    Fields:
        hit_tokens: prompt tokens not computed, tier_hit_tokens: by tier. lookups: admissions by
            reason.
        evicted_pages, evicted_bundles: given up for room.
        skipped_bundles: wanted, and there was no slot or no place in the chunk's exports.
    """

    hit_tokens: int = 0
    tier_hit_tokens: Counter[str] = field(default_factory=Counter)
    lookups: Counter[Reason] = field(default_factory=Counter)
    evicted_pages: int = 0
    evicted_bundles: int = 0
    skipped_bundles: int = 0

    def reset(self) -> None:
        """Count from zero again."""
        self.__init__()  # type: ignore[misc]


@dataclass(slots=True)
class TierCounters:
    """What the tiers below the device count; none ever decreases.

    Fields:
        bytes_written, bytes_loaded: by tier. writes: bundles that were copied whole, by tier.
        skipped_writes: bundles not copied, for too many were waiting or held what others need.
        failed_writes: entries a tier refused or could not store.
        loads: bundles asked for. late_loads, failed_loads: those that were given up.
    """

    bytes_written: Counter[str] = field(default_factory=Counter)
    bytes_loaded: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    skipped_writes: int = 0
    failed_writes: int = 0
    loads: int = 0
    late_loads: int = 0
    failed_loads: int = 0

    def reset(self) -> None:
        """Count from zero again."""
        self.__init__()  # type: ignore[misc]


@dataclass(slots=True)
class SwapCounters:
    """What preemption counts; none ever decreases.

    Fields:
        preemptions: by way, "swap" or "recompute". resumes: by how the sequence went on.
        bytes_copied: "out" to host memory and "in" again.
        loads: bundles asked back. failed: bundles that were lost on the way or there.
    """

    preemptions: Counter[str] = field(default_factory=Counter)
    resumes: Counter[str] = field(default_factory=Counter)
    bytes_copied: Counter[str] = field(default_factory=Counter)
    loads: int = 0
    failed: int = 0
