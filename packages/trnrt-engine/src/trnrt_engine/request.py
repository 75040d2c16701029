"""A request inside the engine: what was asked, how far it is, what it holds."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from trnrt_engine.api import CacheReport, EngineRequest, FinishReason
from trnrt_engine.cache.prefix_key import PrefixKey
from trnrt_engine.cache.report import NOTHING, MatchReport
from trnrt_engine.cache.sequence import Admission, SequenceCache
from trnrt_engine.errors import IntegrityError
from trnrt_kernels.serving import GRID

HEAD_ROOM = GRID  # tokens a sequence is promised room for beyond those it has at admission


class RequestStatus(StrEnum):
    """Where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    PREEMPTED = "preempted"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class Request:
    """One sequence on its way.

    The sequence is the prompt followed by the outputs. Position p holds its p-th token; the
    step that computes position p >= num_prompt_tokens - 1 yields output p + 1 -
    num_prompt_tokens.

    Fields:
        max_output_tokens: outputs at most, prior ones included, clamped to the window.
        stop_ids: tokens that end it.
        packed_ids: the prompt, as `prefix_key.pack_ids` gives it; None = as it came.
        deadline_at_s: on the engine's clock.
        output_token_ids: outputs known so far, prior ones included.
        num_computed_tokens: positions whose step has been planned.
        num_steps_in_flight: planned steps not yet committed.
        num_prefilled_tokens: prompt tokens whose step was committed, or that were cached.
        num_preemptions: how often its room was taken away.
        is_whole: its last token ended it; what it computed may be kept for its session.
        is_leaving: it is to be preempted when its step in flight has landed.
        match: what the first admission found in the prefix cache.
        unsent_report: of it, for the first delta; None before admission and once it was sent.
    """

    spec: EngineRequest
    arrival_s: float
    max_output_tokens: int
    stop_ids: frozenset[int]
    packed_ids: array[int] | None = None
    deadline_at_s: float | None = None
    status: RequestStatus = RequestStatus.WAITING
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_steps_in_flight: int = 0
    num_prefilled_tokens: int = 0
    num_preemptions: int = 0
    is_whole: bool = False
    is_leaving: bool = False
    cache: SequenceCache | None = None
    last_token_s: float | None = None
    match: MatchReport = NOTHING
    unsent_report: CacheReport | None = None
    _admission: Admission | None = None

    @property
    def request_id(self) -> str:
        """The client's name for it."""
        return self.spec.request_id

    @property
    def priority(self) -> int:
        """Lower goes first."""
        return self.spec.priority

    @property
    def tenant(self) -> str:
        """Whom the work is charged to."""
        return self.spec.tenant

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.spec.token_ids)

    @property
    def num_prior_tokens(self) -> int:
        """Outputs emitted elsewhere; recomputed here, not emitted again."""
        return len(self.spec.prior_output_ids)

    @property
    def max_cached_tokens(self) -> int:
        """Positions ever computed: all but the last output, which nothing follows."""
        return self.num_prompt_tokens + self.max_output_tokens - 1

    @property
    def admission(self) -> Admission:
        """What it asks of the caches; the same object at every attempt."""
        if self._admission is None:
            spec = self.spec
            num_known = max(self.num_prompt_tokens + len(self.output_token_ids) - 1, 0)
            most = max(self.num_prompt_tokens, num_known) + HEAD_ROOM
            self._admission = Admission(
                max_tokens=min(most, self.max_cached_tokens),
                token_ids=spec.token_ids if self.packed_ids is None else self.packed_ids,
                salt=spec.cache_salt,
                marks=spec.marks,
                control=spec.cache,
            )
        return self._admission

    def key(self, *, page_size: int) -> PrefixKey:
        """Return the key of its tokens that were computed, generated ones included."""
        num_outputs = max(self.num_computed_tokens - self.num_prompt_tokens, 0)
        tokens = [
            *self.spec.token_ids[: self.num_computed_tokens],
            *self.output_token_ids[:num_outputs],
        ]
        return PrefixKey(tokens, salt=self.spec.cache_salt, page_size=page_size)

    def leave(self) -> None:
        """Give up its room; what it has told stays told."""
        self.cache = None
        self.status = RequestStatus.PREEMPTED
        self.is_leaving = False
        self.num_preemptions += 1

    def start(self, cache: SequenceCache) -> None:
        """Take over the room it was given, and what need not be computed.

        After a preemption without a live bundle, its outputs are computed again as prior ones: in
        decode form, and not told twice.
        """
        was_preempted = self.status is RequestStatus.PREEMPTED
        self.cache = cache
        self.status = RequestStatus.RUNNING
        self.num_computed_tokens = cache.num_cached_tokens
        self.num_prefilled_tokens = min(cache.num_cached_tokens, self.num_prompt_tokens)
        self._admission = None
        if was_preempted:
            if not cache.is_resumed:
                outputs = list(self.output_token_ids)
                self.spec = msgspec.structs.replace(self.spec, prior_output_ids=outputs)
            return
        match = self.match = cache.report
        self.unsent_report = CacheReport(
            kv_depth=match.kv_depth,
            state_depth=match.state_depth,
            replayed=match.replayed,
            tier=match.tier,
            reason=match.reason,
        )

    @property
    def room(self) -> SequenceCache:
        """What it holds of the caches.

        Raises:
            IntegrityError: it holds nothing.
        """
        if self.cache is None:
            raise IntegrityError("a request that runs or is in flight holds no room in the caches")
        return self.cache

    @property
    def has_progressed(self) -> bool:
        """It was given a step since it got its room; before, it is not preempted."""
        return self.cache is not None and self.num_computed_tokens > self.cache.num_cached_tokens

    @property
    def is_prefilling(self) -> bool:
        """Part of the prompt has not been planned."""
        return self.num_computed_tokens < self.num_prompt_tokens

    @property
    def can_prefill(self) -> bool:
        """A chunk of its prompt can be planned."""
        return self.is_prefilling and not self.is_leaving

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens of the prompt that have not been planned."""
        return max(self.num_prompt_tokens - self.num_computed_tokens, 0)

    @property
    def num_missing_tokens(self) -> int:
        """Tokens of the prompt whose step was not committed; none once it has ended."""
        if self.status is RequestStatus.FINISHED:
            return 0
        return self.num_prompt_tokens - self.num_prefilled_tokens

    @property
    def next_output_index(self) -> int:
        """Index of the output that computing the next position yields (decode form)."""
        return self.num_computed_tokens + 1 - self.num_prompt_tokens

    @property
    def can_decode(self) -> bool:
        """The next position is an output that is known or will be by the step in flight."""
        return (
            self.status is RequestStatus.RUNNING
            and not self.is_leaving
            and not self.is_prefilling
            and self.next_output_index < self.max_output_tokens
        )

    def next_token_id(self) -> int | None:
        """Return the token at the next position; None while the step that draws it runs."""
        index = self.num_computed_tokens - self.num_prompt_tokens
        return self.output_token_ids[index] if index < len(self.output_token_ids) else None

    def finish_reason_of(self, token_id: int) -> FinishReason | None:
        """Say whether the newest output, `token_id`, ends the request; a stop id wins."""
        num_outputs = len(self.output_token_ids)
        if token_id in self.stop_ids and num_outputs > self.spec.sampling.min_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if num_outputs >= self.max_output_tokens else None
