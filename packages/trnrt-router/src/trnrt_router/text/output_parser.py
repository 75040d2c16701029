"""Splits what a model writes into reasoning, content and tool calls, as it arrives.

The parser reads a stream of texts and tags and is driven by position alone: a tag means something
only where the format allows it, everywhere else it is text. It is one state machine per choice:

    reasoning --</think>--> content
    either --<tool_call>--> opener --NAME, then <arg_key> or </tool_call>--> call --> content

- `<think>` before any reasoning repeats the prompt's own marker and is dropped; later it is text.
- A `</think>` that comes again in the content is dropped.
- `<tool_call>` begins a call if the name of a declared tool follows directly and then `<arg_key>`
  or `</tool_call>`, in the reasoning (which it ends) as in the content. Any other is text, and is
  shown as soon as that is certain; one that the end of the text cuts off is dropped.
- What is inside a call `call_reader.py` reads. Blanks between calls and behind the last are layout.
- Turn tokens at the very end are stop tokens and dropped; followed by anything they are text.
- Plain text (raw completions) has no tags at all, and without tools there are no calls.

Tags come as token ids where the vocabulary has them as one token; `TagScanner` finds the others
in the text.
"""

from __future__ import annotations

from trnrt_router.text.call_reader import CallOpener, CallReader
from trnrt_router.text.detokenize import Tag
from trnrt_router.text.markup import Markup, Section
from trnrt_router.text.tools import Tool, Tools
from trnrt_router.text.visible import Visible


class OutputParser:
    """The state machine of one choice.

    Args:
        starts_in: the section the prompt left open.
        markup: the family's tags.
        tools: what may be called; None where nothing is, and the tags of calls are text.
        visible: takes what is certain.

    Attributes:
        section: where the next text belongs.
    """

    def __init__(
        self, starts_in: Section, *, markup: Markup, tools: Tools | None, visible: Visible
    ) -> None:
        self.section = starts_in
        self._markup = markup
        self._tools = tools
        self._visible = visible
        self._turn_tokens = frozenset(markup.turn_tokens)
        self._is_blank = True
        self._ending = ""
        # Whether the text stands in a call, in what may become one, or directly behind one.
        # Elsewhere a text is simply shown.
        self._is_at_call = False
        self._layout: list[str] = []
        self._opener: CallOpener | None = None
        self._call: CallReader | None = None
        self._num_calls = 0

    @property
    def is_in_call(self) -> bool:
        """Whether the text stands inside a call, or in what may become one."""
        return self._call is not None or self._opener is not None

    @property
    def has_whole_calls(self) -> bool:
        """Whether there are calls and none of them is cut."""
        return self._num_calls > 0 and self._call is None

    def push(self, piece: str) -> None:
        """Read one text or tag."""
        if isinstance(piece, Tag):
            if piece in self._turn_tokens:
                self._ending += piece
            elif not self._is_dropped(piece):
                if self._ending:
                    self._release_ending()
                self._read_tag(piece)
        elif piece:
            if self._ending:
                self._release_ending()
            self._read_text(piece)

    def finish(self) -> None:
        """End the text: turn tokens, layout and the opener of a cut call are not shown."""
        if self._call is not None:
            self._visible.add_arguments(self._num_calls - 1, self._call.finish())

    def _release_ending(self) -> None:
        """Read turn tokens that turned out not to be the end as text."""
        text, self._ending = self._ending, ""
        self._read_text(text)

    def _read_text(self, text: str) -> None:
        if not self._is_at_call:  # nearly every token
            if self._is_blank:
                self._is_blank = text.isspace()
            self._visible.add(self.section, text)
        elif self._call is not None:
            self._visible.add_arguments(self._num_calls - 1, self._call.push(text))
        elif self._opener is not None:
            if not self._opener.push(text):
                self._show(self._opener.text)
        elif text.isspace():
            self._layout.append(text)
        else:
            self._show(text)

    def _read_tag(self, tag: Tag) -> None:
        if self._call is not None:
            self._read_tag_in_call(self._call, tag)
        elif self._opener is None:
            self._read_tag_in_section(tag)
        elif (tool := self._opener.tool_called_by(tag)) is not None:
            self._read_tag_in_call(self._begin_call(tool), tag)
        else:
            self._show(self._opener.text)
            self._read_tag_in_section(tag)

    def _read_tag_in_section(self, tag: Tag) -> None:
        if self._tools is not None and tag == self._markup.calls.call_open:
            self._opener = CallOpener(self._markup.calls, self._tools)
            self._is_at_call = True
        elif tag == self._markup.think_close:
            self.section = Section.CONTENT
        else:
            self._show(str(tag))

    def _is_dropped(self, tag: Tag) -> bool:
        """Whether a tag stands where it says again what is known."""
        if self._call is not None:
            return False
        if tag == self._markup.think_close:
            return self.section is Section.CONTENT
        is_first = self.section is Section.REASONING and self._is_blank and self._opener is None
        return is_first and tag == self._markup.think_open

    def _begin_call(self, tool: Tool) -> CallReader:
        self.section = Section.CONTENT
        self._opener = None
        self._layout.clear()
        self._call = CallReader(tool, self._markup.calls)
        self._visible.begin_call(self._num_calls, tool.name)
        self._num_calls += 1
        return self._call

    def _read_tag_in_call(self, call: CallReader, tag: Tag) -> None:
        self._visible.add_arguments(self._num_calls - 1, call.push(tag))
        if call.is_closed:
            self._call = None

    def _show(self, text: str) -> None:
        """Show a text that is not blank, behind the layout that turned out to be none."""
        self._visible.add(self.section, "".join(self._layout) + text)
        self._layout.clear()
        self._opener = None
        self._is_at_call = self._is_blank = False
