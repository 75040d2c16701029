"""Control tokens inside a prompt: scaffolding of the template, or words somebody typed.

A message may spell `<|user|>`; only the template may mean it. Before rendering, every spelling in
message data is broken up by a *seam*, a random word put behind its first character. The template
then cannot produce that control token from data, whatever it does with the text. After rendering
the seams are taken out and their offsets kept: a spelling with a seam inside is plain text.
"""

from __future__ import annotations

import re
import secrets
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptText:
    """A prompt as text; `seams` are ascending offsets, each inside a spelling that is plain."""

    text: str
    seams: tuple[int, ...] = ()


def new_seam() -> str:
    """Make a word that no message holds; letters and digits pass unchanged through JSON."""
    return secrets.token_hex(16)


class Controls:
    """The control tokens of a vocabulary and where they are spelled.

    Args:
        ids: token to id; every token has at least two characters.

    Raises:
        ValueError: a token is a single character and could not be told from plain text.
    """

    def __init__(self, ids: Mapping[str, int]) -> None:
        if short := [token for token in ids if len(token) < 2]:
            raise ValueError(f"control tokens of one character are not supported: {short}")
        self.ids = dict(ids)
        self.tokens = {index: token for token, index in ids.items()}
        self._token = _any_of(ids)

    def break_up(self, text: str, seam: str, *, keep: Iterable[str] = ()) -> str:
        """Put `seam` into every spelling of a control token, except those in `keep`."""
        if not self._token.search(text):
            return text
        kept = set(keep)
        pattern = _start_of_any(token for token in self.ids if token not in kept)
        return pattern.sub(lambda start: start[0] + seam, text)

    def split(self, prompt: PromptText) -> Iterator[str | int]:
        """Yield the prompt as non-empty plain texts (str) and control ids (int), in order."""
        text, seams = prompt.text, prompt.seams
        plain_from = 0
        for match in self._token.finditer(text):
            start, end = match.span()
            if seams:
                index = bisect_right(seams, start)
                if index < len(seams) and seams[index] < end:
                    continue
            if plain_from < start:
                yield text[plain_from:start]
            yield self.ids[match[0]]
            plain_from = end
        if plain_from < len(text):
            yield text[plain_from:]


def remove_seams(text: str, seam: str) -> PromptText:
    """Take the seams out of a rendered prompt and remember where they were."""
    pieces = text.split(seam)
    seams = []
    offset = 0
    for piece in pieces[:-1]:
        offset += len(piece)
        seams.append(offset)
    return PromptText("".join(pieces), tuple(seams))


def _any_of(tokens: Iterable[str]) -> re.Pattern[str]:
    # Longest first: where one token begins another, the longer one is meant.
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _start_of_any(tokens: Iterable[str]) -> re.Pattern[str]:
    """Match the first character of every spelling, also of overlapping ones."""
    rests = defaultdict(list)
    for token in tokens:
        rests[token[0]].append(re.escape(token[1:]))
    branches = [f"{re.escape(first)}(?={'|'.join(rest)})" for first, rest in rests.items()]
    return re.compile("|".join(branches) or r"(?!)")
