"""Finds tags that arrive spelled in text, where the vocabulary has no token for them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from trnrt_router.text.detokenize import Tag
from trnrt_router.text.patterns import Patterns


class TagScanner:
    """Finds tags spelled in text, holding back only what may become one."""

    def __init__(self, tags: Iterable[str]) -> None:
        self._patterns = _patterns_of(tuple(tags))
        self._state = 0
        self._held = ""

    def push(self, text: str) -> list[str]:
        """Return the texts and tags that are certain now, in order."""
        found: list[str] = []
        start = 0
        while start < len(text):
            self._state, end, length = self._patterns.scan(self._state, text, start)
            seen = self._held + text[start:end]
            held = length or self._patterns.depth[self._state]
            border = len(seen) - held
            if border:
                found.append(seen[:border])
            self._held = seen[border:]
            if length:
                found.append(Tag(self._held))
                self._state, self._held = 0, ""
            start = end
        return found

    def finish(self) -> str:
        """Return the held text: what follows cannot complete it."""
        held, self._held, self._state = self._held, "", 0
        return held


@lru_cache(maxsize=16)
def _patterns_of(tags: tuple[str, ...]) -> Patterns:
    """A family's tags are the same for every choice: build their automaton once."""
    return Patterns(tags)
