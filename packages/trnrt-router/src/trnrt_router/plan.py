"""What one client request asks of the engines, worked out before anything is sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from trnrt_router.affinity import RouteKey
from trnrt_router.protocol import EngineRequest
from trnrt_router.text.markup import GLM, Markup, Section
from trnrt_router.text.tools import Tools


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, the section the answer begins in (None where it is not parsed), and marks."""

    token_ids: list[int]
    starts_in: Section | None
    marks: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoicePlan:
    """One choice: what its engine runs and how its output is read.

    Fields:
        starts_in: the section the answer begins in; None where the output is not parsed at all.
    """

    request: EngineRequest
    starts_in: Section | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationPlan:
    """Choices in order of their index, and how they are answered.

    Fields:
        id: the reply's id; engine request ids begin with it.
        num_prompt_tokens: of all prompts, each counted once.
        markup: the words of the model's family.
        tools: what the model may call; None where the output is not searched for calls.
        num_logprobs: None = none asked for.
        ignored_fields: request fields that have no effect here.
        warnings: what is done differently from what the request says.
    """

    id: str
    model: str
    created: int
    choices: list[ChoicePlan]
    choices_per_prompt: int
    num_prompt_tokens: int
    route: RouteKey
    stop: tuple[str, ...] = ()
    include_stop_str: bool = False
    markup: Markup = GLM
    tools: Tools | None = None
    num_logprobs: int | None = None
    is_stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    ignored_fields: list[str] = field(default_factory=list)
    warnings: tuple[str, ...] = ()

    @property
    def requests(self) -> list[EngineRequest]:
        return [choice.request for choice in self.choices]
