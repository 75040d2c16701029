"""Finds the first of several strings in a text that arrives in pieces.

An Aho-Corasick automaton: after each character its state is the longest end of the text that
begins a pattern. So the state's depth is exactly how much must be held back, and a match is seen
on the character that completes it, however the text is cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


class Patterns:
    """An automaton over a fixed set of strings; state 0 is the start.

    Args:
        patterns: non-empty strings; none at all is allowed and never matches.

    Attributes:
        depth: per state, how many characters of the text so far may begin a pattern.

    Raises:
        ValueError: a pattern is empty.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self.depth = [0]
        self._match = [0]
        for pattern in patterns:
            self._insert(pattern)
        self._fail = self._failure_links()
        firsts = "".join(map(re.escape, self._next[0]))
        self._first = re.compile(f"[{firsts}]" if firsts else r"(?!)")

    def scan(self, state: int, text: str, start: int = 0) -> tuple[int, int, int]:
        """Read `text` from `start` up to its end or the first completed pattern.

        Returns:
            (state, position behind what was read, length of the match or 0). Of patterns that end
            on the same character the longest counts.
        """
        position, size = start, len(text)
        while position < size:
            if state == 0:
                found = self._first.search(text, position)
                if found is None:
                    return 0, size, 0
                position = found.start()
            character = text[position]
            while state and character not in self._next[state]:
                state = self._fail[state]
            state = self._next[state].get(character, 0)
            position += 1
            if self._match[state]:
                return state, position, self._match[state]
        return state, size, 0

    def _insert(self, pattern: str) -> None:
        if not pattern:
            raise ValueError("an empty string cannot be searched for")
        state = 0
        for character in pattern:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self.depth.append(self.depth[state] + 1)
                self._match.append(0)
            state = self._next[state][character]
        self._match[state] = len(pattern)

    def _failure_links(self) -> list[int]:
        fail = [0] * len(self._next)
        queue = list(self._next[0].values())
        for state in queue:  # grows while it is read: breadth first
            for character, child in self._next[state].items():
                queue.append(child)
                back = fail[state]
                while back and character not in self._next[back]:
                    back = fail[back]
                fail[child] = self._next[back].get(character, 0)
                self._match[child] = self._match[child] or self._match[fail[child]]
        return fail
