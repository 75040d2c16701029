"""Reads one tool call behind its name, as it arrives, and writes its arguments.

    between --<arg_key>--> key --</arg_key>--> behind key --<arg_value>--> value
       ^                                                                     |
       +---- <arg_key> or </tool_call> follows ---- value end <--</arg_value>+

- `</arg_value>` ends a value only if, blanks aside, `<arg_key>` or `</tool_call>` follows, or the
  text ends. Every other tag in a value is its text. Values are not trimmed, keys are.
- A call ends with `</tool_call>` outside a value.
- What the format does not allow never becomes data: a key that is broken off is dropped, text
  between pairs too. A value whose opening tag was forgotten is read nevertheless.
"""

from __future__ import annotations

from enum import Enum, auto

from trnrt_router.text.arguments import ArgumentWriter
from trnrt_router.text.detokenize import Tag
from trnrt_router.text.markup import CallMarkup
from trnrt_router.text.tools import Tool, Tools


class _Place(Enum):
    BETWEEN = auto()
    KEY = auto()
    BEHIND_KEY = auto()
    VALUE = auto()
    VALUE_END = auto()


class CallOpener:
    """What may become a call: its opening tag has been read, its name is not whole yet.

    Attributes:
        text: what has been read, as written.
    """

    def __init__(self, markup: CallMarkup, tools: Tools) -> None:
        self.text = markup.call_open
        self._name = ""
        self._markup = markup
        self._tools = tools

    def push(self, text: str) -> bool:
        """Read a text and return whether this may still become a call."""
        self.text += text
        self._name += text
        return self._tools.may_become_name(self._name)

    def tool_called_by(self, tag: Tag) -> Tool | None:
        """Return the tool whose call this tag makes of it, None where it makes none."""
        ends_name = tag in (self._markup.key_open, self._markup.call_close)
        return self._tools.find(self._name) if ends_name else None


class CallReader:
    """The state machine of one call; `push` and `finish` return the next argument text.

    Attributes:
        is_closed: the call is whole; nothing more may be pushed.
    """

    def __init__(self, tool: Tool, markup: CallMarkup) -> None:
        self.is_closed = False
        self._markup = markup
        self._writer = ArgumentWriter(tool.parameters)
        self._place = _Place.BETWEEN
        self._key: list[str] = []
        self._held: list[str] = []

    def push(self, piece: str) -> str:
        """Read a text or a tag."""
        if isinstance(piece, Tag):
            return self._push_tag(piece)
        match self._place:
            case _Place.VALUE:
                return self._writer.add(piece)
            case _Place.KEY:
                self._key.append(piece)
            case _Place.BEHIND_KEY:
                self._held.append(piece)
                if not piece.isspace():
                    return self._begin_value() + self._release()
            case _Place.VALUE_END:
                self._held.append(piece)
                if not piece.isspace():
                    self._place = _Place.VALUE
                    return self._release()
            case _Place.BETWEEN:
                pass
        return ""

    def finish(self) -> str:
        """End the text inside the call: a value whose end was seen is whole, the call is not."""
        return self._end_value() if self._place is _Place.VALUE_END else ""

    def _push_tag(self, tag: Tag) -> str:
        markup = self._markup
        match self._place:
            case _Place.VALUE:
                return self._push_tag_in_value(tag)
            case _Place.VALUE_END:
                if tag in (markup.key_open, markup.call_close):
                    return self._end_value() + self._push_border(tag)
                return self._release() + self._push_tag_in_value(tag)
            case _Place.BEHIND_KEY if tag == markup.value_open:
                self._held.clear()
                return self._begin_value()
            case _Place.BEHIND_KEY if tag == markup.value_close:
                return self._begin_value() + self._release() + self._push_tag_in_value(tag)
            case _Place.KEY if tag == markup.key_close:
                self._place = _Place.BEHIND_KEY
                return ""
            case _Place.KEY if tag == markup.value_open:
                return self._begin_value()
        return self._push_border(tag)

    def _push_tag_in_value(self, tag: Tag) -> str:
        if tag != self._markup.value_close:
            self._place = _Place.VALUE
            return self._writer.add(str(tag))
        self._place = _Place.VALUE_END
        self._held.append(tag)
        return ""

    def _push_border(self, tag: Tag) -> str:
        """Read a tag outside a value: one that begins a pair or ends the call, or means nothing."""
        if tag == self._markup.key_open:
            self._drop_pair()
            self._place = _Place.KEY
        elif tag == self._markup.call_close:
            self.is_closed = True
            return self._writer.close()
        elif tag in self._markup.tags:
            self._drop_pair()
        return ""

    def _drop_pair(self) -> None:
        self._key.clear()
        self._held.clear()
        self._place = _Place.BETWEEN

    def _begin_value(self) -> str:
        key = "".join(self._key).strip()
        self._key.clear()
        self._place = _Place.VALUE
        return self._writer.begin(key)

    def _end_value(self) -> str:
        self._drop_pair()
        return self._writer.end()

    def _release(self) -> str:
        """Read what was held as text of the value."""
        text = "".join(self._held)
        self._held.clear()
        return self._writer.add(text) if text else ""
