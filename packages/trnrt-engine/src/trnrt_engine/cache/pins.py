"""Sessions that asked to be kept: their deepest bundle and its path are not evicted."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass

from trnrt_engine.cache.bundles import Bundle
from trnrt_engine.cache.prefix_cache import PrefixCache
from trnrt_engine.cache.radix import Node

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pin:
    """What one session holds."""

    bundle: Bundle
    node: Node


class SessionPins:
    """Hold one bundle per session, half of all slots and pages at most.

    Beyond that the oldest pins are let go: a client that never releases must not stop the others.
    """

    def __init__(self, prefix: PrefixCache, *, num_pages: int) -> None:
        self._prefix = prefix
        self._max_pages = num_pages // 2
        self._max_pins = prefix.num_slots // 2
        self._pins: dict[str, Pin] = {}

    def pin(self, session_id: str, bundle: Bundle) -> None:
        """Hold a bundle for a session in place of what the session held."""
        self.release(session_id)
        if not bundle.is_live or self._num_pages(bundle) > self._max_pages or not self._max_pins:
            logger.warning("pin refused: too large tokens=%d", bundle.position)
            return
        while self._pins and (
            len(self._pins) >= self._max_pins
            or self._num_pages(bundle) + sum(map(self._pages_of, self._pins.values()))
            > self._max_pages
        ):
            self.release_oldest()
        if not self._prefix.can_hold(bundle.node):
            # A page that is known and held by nobody is behind it: that one was promised to others.
            logger.warning("pin refused: no room tokens=%d", bundle.position)
            return
        self._prefix.lock(bundle.node)
        self._prefix.lock_bundle(bundle)
        self._pins[session_id] = Pin(bundle, bundle.node)

    def release(self, session_id: str) -> bool:
        """Let go of what a session holds; False if it holds nothing."""
        pin = self._pins.pop(session_id, None)
        if pin is None:
            return False
        self._prefix.unlock_bundle(pin.bundle)
        self._prefix.unlock(pin.node)
        return True

    def release_oldest(self) -> bool:
        """Let go of the oldest pin; False if there is none."""
        session_id = next(iter(self._pins), None)
        if session_id is None:
            return False
        logger.warning("pin given up for room tokens=%d", self._pins[session_id].bundle.position)
        return self.release(session_id)

    def release_dead(self) -> None:
        """Let go of pins whose bundle was flushed or whose time is over."""
        for session_id in [s for s, pin in self._pins.items() if not pin.bundle.is_live]:
            self.release(session_id)

    def locks(self) -> tuple[Counter[Node], Counter[Bundle]]:
        """Return what all pins hold, for `check_integrity`."""
        pins = self._pins.values()
        return Counter(pin.node for pin in pins), Counter(pin.bundle for pin in pins)

    def _pages_of(self, pin: Pin) -> int:
        return self._num_pages(pin.bundle)

    def _num_pages(self, bundle: Bundle) -> int:
        return -(-bundle.position // self._prefix.tree.page_size)
