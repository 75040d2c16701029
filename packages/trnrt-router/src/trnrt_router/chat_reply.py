"""Events of a generation to chat completion objects, whole or in chunks."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence

from msgspec import UNSET, UnsetType

from trnrt_router.generation import ChoiceEvent, Generation
from trnrt_router.openai.chat import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatTokenLogprob,
    FunctionCall,
    FunctionDelta,
    ToolCall,
    ToolCallDelta,
    TopLogprob,
)
from trnrt_router.openai.common import Usage
from trnrt_router.plan import GenerationPlan
from trnrt_router.protocol import TokenLogprob
from trnrt_router.text.tokenizer import Tokenizer
from trnrt_router.text.visible import CallDelta
from trnrt_router.usage import finite, usage_of


class ChatReply:
    """Writes the reply of one chat request."""

    def __init__(self, plan: GenerationPlan, tokenizer: Tokenizer) -> None:
        self._plan = plan
        self._tokenizer = tokenizer
        self._has_role: set[int] = set()

    def chunk(self, event: ChoiceEvent, usage: Usage | UnsetType = UNSET) -> ChatChunk | None:
        """Return an event's chunk, None for an event that says nothing.

        The role comes with a choice's first chunk, once.
        """
        role: str | UnsetType = UNSET
        if event.index not in self._has_role:
            self._has_role.add(event.index)
            role = "assistant"
        elif not (
            event.content
            or event.reasoning
            or event.tool_calls
            or event.logprobs
            or event.finish_reason
        ):
            return None
        delta = ChatDelta(
            role=role,
            content=event.content or ("" if role else UNSET),
            reasoning_content=event.reasoning or UNSET,
            tool_calls=(
                [_call_delta(call) for call in event.tool_calls] if event.tool_calls else UNSET
            ),
        )
        choice = ChatChunkChoice(
            index=event.index,
            delta=delta,
            finish_reason=event.finish_reason,
            logprobs=self._logprobs(event.logprobs) or UNSET,
        )
        return self._chunk([choice], usage)

    def usage_chunk(self, generation: Generation) -> ChatChunk:
        """Return the last chunk of a stream that was asked for usage."""
        return self._chunk([], usage_of(generation))

    def whole(self, events: Sequence[ChoiceEvent], generation: Generation) -> ChatCompletion:
        """Join all events into one reply."""
        plan = self._plan
        return ChatCompletion(
            id=plan.id,
            created=plan.created,
            model=plan.model,
            choices=[
                self._choice(index, [event for event in events if event.index == index])
                for index in range(len(plan.choices))
            ],
            usage=usage_of(generation),
        )

    def _choice(self, index: int, events: list[ChoiceEvent]) -> ChatChoice:
        logprobs = [logprob for event in events for logprob in event.logprobs]
        content = "".join(event.content for event in events)
        calls = _whole_calls(call for event in events for call in event.tool_calls)
        message = ChatMessage(
            content=content or (None if calls else ""),
            reasoning_content="".join(event.reasoning for event in events) or UNSET,
            tool_calls=calls or UNSET,
        )
        return ChatChoice(
            index=index,
            message=message,
            finish_reason=events[-1].finish_reason or "",
            logprobs=self._logprobs(logprobs),
        )

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | UnsetType) -> ChatChunk:
        plan = self._plan
        return ChatChunk(
            id=plan.id, created=plan.created, model=plan.model, choices=choices, usage=usage
        )

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        if self._plan.num_logprobs is None:
            return None
        return ChatLogprobs([self._token_logprob(entry) for entry in logprobs])

    def _token_logprob(self, entry: TokenLogprob) -> ChatTokenLogprob:
        tokenizer = self._tokenizer
        return ChatTokenLogprob(
            token=tokenizer.token_text(entry.token_id),
            logprob=finite(entry.logprob),
            bytes=list(tokenizer.token_bytes(entry.token_id)),
            top_logprobs=[
                TopLogprob(
                    tokenizer.token_text(token_id),
                    finite(logprob),
                    list(tokenizer.token_bytes(token_id)),
                )
                for token_id, logprob in entry.top
            ],
        )


def _call_delta(call: CallDelta) -> ToolCallDelta:
    """Word what a chunk adds to a call; only the first says which call it is."""
    if call.name is None:
        return ToolCallDelta(index=call.index, function=FunctionDelta(arguments=call.arguments))
    return ToolCallDelta(
        index=call.index,
        id=_new_call_id(),
        type="function",
        function=FunctionDelta(name=call.name, arguments=call.arguments),
    )


def _whole_calls(deltas: Iterable[CallDelta]) -> list[ToolCall]:
    names: list[str] = []
    arguments: list[list[str]] = []
    for delta in deltas:
        if delta.name is not None:
            names.append(delta.name)
            arguments.append([])
        arguments[delta.index].append(delta.arguments)
    return [
        ToolCall(id=_new_call_id(), function=FunctionCall(name=name, arguments="".join(pieces)))
        for name, pieces in zip(names, arguments, strict=True)
    ]


def _new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"
