"""What a prompt hits: looked up on the device and below, reported, and given to its sequence."""

from __future__ import annotations

from trnrt_engine.api import CacheMode
from trnrt_engine.cache.holding import Holding, page_of
from trnrt_engine.cache.prefix_cache import Lookup, PrefixCache
from trnrt_engine.cache.prefix_key import PrefixKey
from trnrt_engine.cache.radix import Match
from trnrt_engine.cache.report import DEVICE, MatchReport, Reason
from trnrt_engine.cache.room import Room
from trnrt_engine.cache.sequence import Admission, SequenceCache
from trnrt_engine.cache.tiers import Tiers
from trnrt_engine.cache.turn_ends import TurnEnds
from trnrt_engine.plan import Restore


class Hits:
    """Look-ups on behalf of sequences that ask to be admitted.

    Args:
        tiers: below the device; None = there are none.
        turns: where sessions ended; None = prompts use bundles on the grid only.
        is_caching: there is a prefix cache at all.
    """

    def __init__(
        self,
        prefix: PrefixCache,
        room: Room,
        holding: Holding,
        tiers: Tiers | None,
        turns: TurnEnds | None,
        *,
        page_size: int,
        is_caching: bool,
    ) -> None:
        self._prefix = prefix
        self._room = room
        self._holding = holding
        self._tiers = tiers
        self._turns = turns
        self._page_size = page_size
        self._is_caching = is_caching

    def admit(self, ask: Admission, *, is_cold: bool = False) -> SequenceCache | None:
        """Give a sequence room behind its hit, or without one; None when there is none."""
        found = self.look_up(ask)
        if found is not None and is_cold:
            found = Lookup(Match(None), None, Reason.NO_ROOM)
        cache = SequenceCache(state_slot=-1, control=ask.control)
        if found is not None:
            self._holding.hold(cache, ask, found, report=self._report(ask, found))
        if not self._room.take(cache, ask.max_tokens):
            self._holding.let_go(cache)
            return None
        self._start(cache, found)
        return cache

    def look_up(self, ask: Admission) -> Lookup | None:
        """Find what a prompt can use of the device; None when it uses no cache."""
        if not self._is_caching or ask.control.mode is CacheMode.OFF:
            return None
        if ask.key is None:
            ask.key = PrefixKey(ask.token_ids, salt=ask.salt, page_size=self._page_size)
        found = self._prefix.lookup(ask.key)
        if self._turns is not None and ask.control.session_id:
            deeper = self._turns.find(ask.key, ask.control.session_id, found.match)
            if deeper is not None and deeper.position > found.position:
                return deeper
        return found

    def begin_load(self, ask: Admission) -> bool:
        """Load a deeper bundle from the tiers below, if there is one; False if not."""
        if self._tiers is None or ask.load is not None or ask.is_probed:
            return False
        found = self.look_up(ask)
        return found is not None and self._tiers.begin_load(ask, found)

    def _report(self, ask: Admission, found: Lookup) -> MatchReport:
        """Say what was found, where, and why not more."""
        bundle, reason, tier = found.bundle, found.reason, ""
        if bundle is not None:
            tier = DEVICE if self._tiers is None else self._tiers.tier_of(ask, bundle)
        if tier in ("", DEVICE):
            reason = ask.load_reason or reason
        position = bundle.position if bundle is not None else 0
        return MatchReport(max(found.match.kv_depth, position), position, reason, tier)

    def _start(self, cache: SequenceCache, found: Lookup | None) -> None:
        """Settle a hit: what is copied before the first step, what was used, what is counted."""
        counters = self._prefix.counters
        counters.lookups[cache.report.reason] += 1
        counters.hit_tokens += cache.num_cached_tokens
        counters.tier_hit_tokens[cache.report.tier] += cache.num_cached_tokens
        if found is None or found.bundle is None:
            return
        copies: tuple[tuple[int, int], ...] = ()
        if cache.source is not None:
            self._room.grow(cache, cache.num_cached_tokens)
            copies = ((page_of(cache.source), cache.page_ids[-1]),)
        cache.restore = Restore(found.bundle.slot, copies)
        self._prefix.use(found.bundle)
        if self._tiers is not None and cache.control.mode is CacheMode.WRITE:
            self._tiers.write(found.bundle)
