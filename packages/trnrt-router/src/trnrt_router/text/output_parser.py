"""Splits what a model writes into sections, as it arrives.

The parser reads a stream of texts and tags and is driven by position alone: a tag means something
only where the format allows it, everywhere else it is text. It is one state machine per choice:

    reasoning --`</think>`--> content

- `<think>` before any reasoning repeats the prompt's own marker and is dropped; later it is text.
- A `</think>` that comes again in the content is dropped.
- Turn tokens at the very end are stop tokens and dropped; followed by anything they are text.
- Plain text (raw completions) has no tags at all.

Tags come as token ids where the vocabulary has them as one token; `TagScanner` finds the others
in the text.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from trnrt_router.text.detokenize import Tag
from trnrt_router.text.markup import Markup, Section
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


class OutputParser:
    """The state machine of one choice.

    Args:
        starts_in: the section the prompt left open.
        markup: the family's tags.

    Attributes:
        section: where the next text belongs.
    """

    def __init__(self, starts_in: Section, markup: Markup) -> None:
        self.section = starts_in
        self._markup = markup
        self._turn_tokens = frozenset(markup.turn_tokens)
        self._is_blank = True
        self._ending = ""

    def push(self, piece: str) -> list[tuple[Section, str]]:
        """Read one text or tag and return the section texts that are certain now."""
        if not piece:
            return []
        if isinstance(piece, Tag):
            return self._push_tag(piece)
        if self._is_blank:
            self._is_blank = piece.isspace()
        return self._with_ending(piece)

    def _push_tag(self, tag: Tag) -> list[tuple[Section, str]]:
        if tag in self._turn_tokens:
            self._ending += tag
            return []
        in_reasoning = self.section is Section.REASONING
        if tag == self._markup.think_close:
            if not in_reasoning:
                return []
            released = self._with_ending("")
            self.section = Section.CONTENT
            return released
        if tag == self._markup.think_open and in_reasoning and self._is_blank:
            return []
        self._is_blank = False
        return self._with_ending(str(tag))

    def _with_ending(self, text: str) -> list[tuple[Section, str]]:
        """Put turn tokens that turned out not to be the end before the text."""
        if self._ending:
            text, self._ending = self._ending + text, ""
        return [(self.section, text)] if text else []


@lru_cache(maxsize=16)
def _patterns_of(tags: tuple[str, ...]) -> Patterns:
    """A family's tags are the same for every choice: build their automaton once."""
    return Patterns(tags)
