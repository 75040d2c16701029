"""Events of a generation to completion objects, whole or in chunks."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from trnrt_router.generation import ChoiceEvent, Generation
from trnrt_router.openai.common import Usage
from trnrt_router.openai.completions import Completion, CompletionChoice, CompletionLogprobs
from trnrt_router.plan import GenerationPlan
from trnrt_router.protocol import TokenLogprob
from trnrt_router.text.detokenize import TextOffsets
from trnrt_router.text.tokenizer import Tokenizer
from trnrt_router.usage import finite, usage_of


class CompletionReply:
    """Writes the reply of one completion request."""

    def __init__(self, plan: GenerationPlan, tokenizer: Tokenizer) -> None:
        self._plan = plan
        self._tokenizer = tokenizer
        self._offsets = [TextOffsets(tokenizer) for _ in plan.choices]

    def chunk(self, event: ChoiceEvent, usage: Usage | UnsetType = UNSET) -> Completion | None:
        """Return an event's chunk, None for an event that says nothing."""
        if not (event.content or event.logprobs or event.finish_reason):
            return None
        return self._completion([self._choice(event)], usage)

    def usage_chunk(self, generation: Generation) -> Completion:
        """Return the last chunk of a stream that was asked for usage."""
        return self._completion([], usage_of(generation))

    def whole(self, events: Sequence[ChoiceEvent], generation: Generation) -> Completion:
        """Join all events into one reply."""
        joined = (
            _join(index, [event for event in events if event.index == index])
            for index in range(len(self._plan.choices))
        )
        return self._completion([self._choice(event) for event in joined], usage_of(generation))

    def _completion(self, choices: list[CompletionChoice], usage: Usage | UnsetType) -> Completion:
        plan = self._plan
        return Completion(
            id=plan.id, created=plan.created, model=plan.model, choices=choices, usage=usage
        )

    def _choice(self, event: ChoiceEvent) -> CompletionChoice:
        return CompletionChoice(
            index=event.index,
            text=event.content,
            logprobs=self._logprobs(event.index, event.logprobs),
            finish_reason=event.finish_reason,
        )

    def _logprobs(self, index: int, logprobs: list[TokenLogprob]) -> CompletionLogprobs | None:
        if self._plan.num_logprobs is None:
            return None
        token_ids = [entry.token_id for entry in logprobs]
        top = [self._alternatives(entry) for entry in logprobs]
        return CompletionLogprobs(
            tokens=[self._tokenizer.token_text(token_id) for token_id in token_ids],
            token_logprobs=[finite(entry.logprob) for entry in logprobs],
            top_logprobs=top if self._plan.num_logprobs else None,
            text_offset=[self._offsets[index].push(token_id) for token_id in token_ids],
        )

    def _alternatives(self, entry: TokenLogprob) -> dict[str, float]:
        """Map texts to log-probabilities; of ids with the same text the likelier one counts."""
        by_text: dict[str, float] = {}
        for token_id, logprob in (*entry.top, (entry.token_id, entry.logprob)):
            by_text.setdefault(self._tokenizer.token_text(token_id), finite(logprob))
        return by_text


def _join(index: int, events: list[ChoiceEvent]) -> ChoiceEvent:
    return ChoiceEvent(
        index=index,
        reasoning="",
        content="".join(event.content for event in events),
        logprobs=[logprob for event in events for logprob in event.logprobs],
        finish_reason=events[-1].finish_reason,
    )
