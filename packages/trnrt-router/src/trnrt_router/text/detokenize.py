"""Turns token ids into text and tags as they arrive, never cutting a character."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping

from trnrt_router.text.tokenizer import Tokenizer


class Tag(str):
    """A control token that the output parser acts on, told apart from the same letters as text."""

    __slots__ = ()


class Utf8Stream:
    """Bytes to text: holds back the start of a character, replaces what cannot become one."""

    def __init__(self) -> None:
        self._held = b""

    def push(self, data: bytes) -> str:
        """Return the characters that are complete or known to be invalid."""
        # What the incremental decoder of the library does, without its call in Python per token.
        data = self._held + data
        text, num_read = codecs.utf_8_decode(data, "replace", False)
        self._held = data[num_read:]
        return text

    def finish(self) -> str:
        """End the text here: a cut character is one replacement character. Can be reused."""
        held, self._held = self._held, b""
        return held.decode("utf-8", "replace")


class Detokenizer:
    """Reads the ids of one choice.

    Args:
        tokenizer: gives the bytes of a token.
        tags: ids that are tags and how they are written.
        hidden_ids: ids that are never text.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, tags: Mapping[int, Tag], hidden_ids: frozenset[int]
    ) -> None:
        self._bytes_of = tokenizer.token_bytes
        self._tags = tags
        self._controls = hidden_ids | tags.keys()
        self._utf8 = Utf8Stream()

    def push(self, token_id: int) -> Iterable[str]:
        """Return the text this token completes, or the tag it is."""
        if token_id not in self._controls:
            return (self._utf8.push(self._bytes_of(token_id)),)
        tag = self._tags.get(token_id, "")
        # A character cannot continue behind a control token.
        return (self._utf8.finish(), tag)

    def finish(self) -> str:
        """Return the replacement character of a cut tail, or nothing."""
        return self._utf8.finish()


class TextOffsets:
    """Where tokens begin in the text they make, in characters (completions logprobs)."""

    def __init__(self, tokenizer: Tokenizer, *, start: int = 0) -> None:
        self._bytes_of = tokenizer.token_bytes
        self._utf8 = Utf8Stream()
        self._offset = start

    def push(self, token_id: int) -> int:
        """Return the offset of a token: that of the character its first byte belongs to."""
        offset = self._offset
        self._offset += len(self._utf8.push(self._bytes_of(token_id)))
        return offset
