"""One choice of a request, from token ids to the text a client sees, as it arrives."""

from __future__ import annotations

from collections.abc import Container, Sequence

import msgspec

from trnrt_router.text.detokenize import Detokenizer, Tag
from trnrt_router.text.markup import GLM, Markup, Section
from trnrt_router.text.output_parser import OutputParser, TagScanner
from trnrt_router.text.stop import StopMatcher
from trnrt_router.text.tokenizer import Tokenizer


class ChoiceDelta(msgspec.Struct, frozen=True, gc=False):
    """What became visible by one push.

    Fields:
        num_tokens: how many of the pushed ids belong to the answer; those behind the end of a
            stop string do not.
        finish_reason: set by `finish` only.
    """

    reasoning: str = ""
    content: str = ""
    num_tokens: int = 0
    finish_reason: str | None = None


class TextStream:
    """Output parser with the stop matcher behind it: text and tags in, visible text out.

    Joined, the deltas are the same for every way the text is cut into pushes.

    Args:
        starts_in: the section the prompt left open; None for plain text, which has no tags.
        stop: stop strings; they act on the content, never inside the reasoning.
        include_stop_str: show the stop string that ended the content.
        token_tags: tags that arrive as `Tag`; all others are looked for in the text.
    """

    def __init__(
        self,
        *,
        starts_in: Section | None,
        stop: Sequence[str] = (),
        include_stop_str: bool = False,
        token_tags: Container[str] = (),
        markup: Markup = GLM,
    ) -> None:
        tags = markup.tags + markup.turn_tokens if starts_in is not None else ()
        spelled = [tag for tag in tags if tag not in token_tags]
        self._scanner = TagScanner(spelled) if spelled else None
        self._parser = OutputParser(starts_in or Section.CONTENT, markup)
        self._stop = StopMatcher(stop, include_stop_str=include_stop_str)
        self._visible: dict[Section, list[str]] = {section: [] for section in Section}

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
            self._show(piece)
        elif isinstance(piece, Tag):
            # A spelled tag cannot continue behind a control token.
            self._show(self._scanner.finish())
            self._show(piece)
        else:
            for found in self._scanner.push(piece):
                self._show(found)

    def finish(self) -> None:
        """End the text: what was held back is visible, a turn token at the end is not."""
        if self._scanner is not None:
            self._show(self._scanner.finish())
        self._visible[Section.CONTENT].append(self._stop.finish())

    def take(self, *, num_tokens: int = 0, finish_reason: str | None = None) -> ChoiceDelta:
        """Return what became visible since the last call."""
        reasoning, content = self._visible[Section.REASONING], self._visible[Section.CONTENT]
        delta = ChoiceDelta("".join(reasoning), "".join(content), num_tokens, finish_reason)
        reasoning.clear()
        content.clear()
        return delta

    def _show(self, piece: str) -> None:
        for section, text in self._parser.push(piece):
            visible = self._stop.push(text) if section is Section.CONTENT else text
            self._visible[section].append(visible)


class ChoiceStream:
    """Detokenizer, output parser and stop matcher of one choice, in this order.

    Args:
        starts_in, stop, include_stop_str: see `TextStream`.

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
    ) -> None:
        ids = tokenizer.controls.ids
        tags = markup.tags if starts_in is not None else ()
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
            finish_reason: the engine's; a stop string that matched makes it `stop`.
        """
        if not self.stopped:
            self._text.push(self._detokenizer.finish())
            self._text.finish()
        return self._text.take(finish_reason="stop" if self.stopped else finish_reason)
