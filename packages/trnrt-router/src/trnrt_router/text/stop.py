"""Ends a text at the first stop string, wherever the text is cut into pieces."""

from __future__ import annotations

from collections.abc import Sequence

from trnrt_router.text.patterns import Patterns


class StopMatcher:
    """Passes text through, holding back only what may become a stop string.

    The stop string that is completed first ends the text; of several completed by the same
    character the longest does. Nothing of it is shown unless `include_stop_str` is set.

    Args:
        stop: non-empty strings.
        include_stop_str: the text ends with the stop string instead of before it.

    Attributes:
        matched: the stop string that ended the text.
    """

    def __init__(self, stop: Sequence[str] = (), *, include_stop_str: bool = False) -> None:
        self._patterns = Patterns(stop) if stop else None
        self._includes_stop = include_stop_str
        self._state = 0
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Return the text that is now certain to be visible; nothing after a match."""
        if self.matched is not None:
            return ""
        if self._patterns is None:
            return text
        self._state, end, length = self._patterns.scan(self._state, text)
        seen = self._held + text[:end]
        if length:
            self.matched = seen[-length:]
            self._held = ""
            return seen if self._includes_stop else seen[:-length]
        visible = len(seen) - self._patterns.depth[self._state]
        self._held = seen[visible:]
        return seen[:visible]

    def finish(self) -> str:
        """Return what was held back: no stop string came of it. What follows begins anew."""
        held, self._held, self._state = self._held, "", 0
        return held
