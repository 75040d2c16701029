"""One choice of a request, from token ids to the text a client sees, as it arrives."""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

from trnrt_router.text.detokenize import Detokenizer, Tag
from trnrt_router.text.markup import GLM, Markup, Section
from trnrt_router.text.output_parser import OutputParser
from trnrt_router.text.stop import StopMatcher
from trnrt_router.text.tag_scanner import TagScanner
from trnrt_router.text.tokenizer import Tokenizer
from trnrt_router.text.tools import Tools
from trnrt_router.text.visible import CallDelta, Visible


class ChoiceDelta(msgspec.Struct, frozen=True, gc=False):
    """What became visible by one push.

    Fields:
        num_tokens: how many of the pushed ids belong to the answer; those behind the end of a
            stop string do not.
        finish_reason: set by `finish` only.
        tool_calls: one entry per call that something became known of, ascending.
    """

    reasoning: str = ""
    content: str = ""
    num_tokens: int = 0
    finish_reason: str | None = None
    tool_calls: tuple[CallDelta, ...] = ()


class TextStream:
    """Output parser with the stop matcher behind it: text and tags in, visible text out.

    Joined, the deltas are the same for every way the text is cut into pushes.

    Args:
        starts_in: the section the prompt left open; None for plain text, which has no tags.
        stop: stop strings; they act on the content, never inside reasoning or calls.
        include_stop_str: show the stop string that ended the content.
        token_tags: tags that arrive as `Tag`; all others are looked for in the text.
        tools: what may be called; None where the tags of calls are text.
    """

    def __init__(
        self,
        *,
        starts_in: Section | None,
        stop: Sequence[str] = (),
        include_stop_str: bool = False,
        token_tags: Container[str] = (),
        markup: Markup = GLM,
        tools: Tools | None = None,
    ) -> None:
        tags = tags_of(markup, starts_in=starts_in, tools=tools)
        turn_tokens = markup.turn_tokens if tags else ()
        spelled = [tag for tag in (*tags, *turn_tokens) if tag not in token_tags]
        self._scanner = TagScanner(spelled) if spelled else None
        self._stop = StopMatcher(stop, include_stop_str=include_stop_str)
        self._visible = Visible(self._stop)
        self._parser = OutputParser(
            starts_in or Section.CONTENT, markup=markup, tools=tools, visible=self._visible
        )

    @property
    def section(self) -> Section:
        """Where the next text belongs."""
        return self._parser.section

    @property
    def matched_stop(self) -> str | None:
        """The stop string that ended the content; nothing is visible after it."""
        return self._stop.matched

    def push(self, piece: str) -> None:
        """Read a text or a tag; `take` gives what it made visible."""
        if self._scanner is None:
            self._parser.push(piece)
            return
        # A spelled tag cannot continue behind a control token.
        is_tag = isinstance(piece, Tag)
        found = [self._scanner.finish(), piece] if is_tag else self._scanner.push(piece)
        for part in found:
            if self._stop.matched is None:
                self._parser.push(part)

    def finish(self, tail: str = "") -> None:
        """End the text: what was held back is visible, a turn token at the end is not.

        Args:
            tail: stands for a character that was cut. Neither it nor half a tag goes into a call.
        """
        if not self._parser.is_in_call:
            self.push(tail)
            if self._scanner is not None:
                self._parser.push(self._scanner.finish())
        self._parser.finish()
        self._visible.finish()

    def take(self, *, num_tokens: int = 0, finish_reason: str | None = None) -> ChoiceDelta:
        """Return what became visible since the last call."""
        reasoning, content, calls = self._visible.take()
        return ChoiceDelta(reasoning, content, num_tokens, finish_reason, calls)

    def finish_reason(self, ended: str) -> str:
        """Say why the answer ended: a limit always shows, a cut call is no `tool_calls`.

        Args:
            ended: why no more tokens came.
        """
        reason = "stop" if self.matched_stop is not None else ended
        return "tool_calls" if reason == "stop" and self._parser.has_whole_calls else reason


def tags_of(markup: Markup, *, starts_in: Section | None, tools: Tools | None) -> tuple[str, ...]:
    """Return the tags that mean something in a choice."""
    if starts_in is None:
        return ()
    return markup.tags if tools is None else markup.tags + markup.calls.tags


class ChoiceStream:
    """Detokenizer, output parser and stop matcher of one choice, in this order.

    Args:
        starts_in, stop, include_stop_str, tools: see `TextStream`.

    Attributes:
        num_tokens: ids of the answer so far, the stop token included.
        num_reasoning_tokens: those that are reasoning.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        starts_in: Section | None,
        stop: Sequence[str] = (),
        include_stop_str: bool = False,
        markup: Markup = GLM,
        tools: Tools | None = None,
    ) -> None:
        ids = tokenizer.controls.ids
        tags = tags_of(markup, starts_in=starts_in, tools=tools)
        hidden = markup.turn_tokens + markup.hidden_tokens
        self._detokenizer = Detokenizer(
            tokenizer,
            tags={ids[tag]: Tag(tag) for tag in tags if tag in ids},
            hidden_ids=frozenset(ids[token] for token in hidden if token in ids),
        )
        self._text = TextStream(
            starts_in=starts_in,
            stop=stop,
            include_stop_str=include_stop_str,
            token_tags=ids,
            markup=markup,
            tools=tools,
        )
        self.num_tokens = 0
        self.num_reasoning_tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the content: the engine need not go on."""
        return self._text.matched_stop is not None

    @property
    def matched_stop(self) -> str | None:
        """The stop string that ended the content."""
        return self._text.matched_stop

    def push(self, token_ids: Sequence[int], *, stop_token_id: int | None = None) -> ChoiceDelta:
        """Read the next ids.

        Args:
            stop_token_id: set when the last of these ids ended the request; it counts and is
                not shown.
        """
        before = self.num_tokens
        last = len(token_ids) - 1
        for index, token_id in enumerate(token_ids):
            if self._text.matched_stop is not None:
                break
            self.num_tokens += 1
            if index == last and token_id == stop_token_id:
                break
            for piece in self._detokenizer.push(token_id):
                self._text.push(piece)
            self.num_reasoning_tokens += self._text.section is Section.REASONING
        return self._text.take(num_tokens=self.num_tokens - before)

    def finish(self, finish_reason: str) -> ChoiceDelta:
        """End the answer: release what was held back and settle why it ended.

        Args:
            finish_reason: the engine's; a stop string that matched makes it `stop`, whole
                calls make that `tool_calls`.
        """
        if not self.stopped:
            self._text.finish(self._detokenizer.finish())
        return self._text.take(finish_reason=self._text.finish_reason(finish_reason))
