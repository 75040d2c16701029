"""What passes between scheduler and runner: a plan goes in, a result comes back.

Plain structs of ints; a plan says everything a step needs but the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trnrt_engine.api import EngineRequest


@dataclass(frozen=True, slots=True)
class Restore:
    """What a hit of the prefix cache copies before its sequence computes.

    Fields:
        state_slot: of the bundle; copied to the sequence's slot.
        page_copies: (from, to) pages; the part of a page a hit ends inside of.
    """

    state_slot: int
    page_copies: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Save:
    """The end of a turn, copied before a step computes; its sequence gives its room back after.

    Fields:
        source_slot: of the sequence. state_slot: of the bundle.
        page_copies: (from, to) pages; the one that is shared in part.
    """

    source_slot: int
    state_slot: int
    page_copies: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Export:
    """A state on the grid that a chunk leaves in a slot beside its own.

    Fields:
        num_tokens: tokens of the chunk after which; a multiple of the grid.
    """

    num_tokens: int
    state_slot: int


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Prompt positions [start, start + len(token_ids)) of one sequence.

    Fields:
        start: a multiple of the chunk grid, or where the session's last turn ended.
        page_ids: block table; holds all positions up to the chunk's end.
        is_first: of this sequence in this slot; nothing of the request has been drawn yet.
        samples: draw output 0 from the last position.
        stop_ids: what would end the request; banned before its min_tokens.
        restore: executed before the chunk; None unless it is the first behind a hit.
        exports: ascending, at most `MAX_EXPORTS`.
    """

    request: EngineRequest
    state_slot: int
    page_ids: Sequence[int]
    start: int
    token_ids: Sequence[int]
    is_first: bool
    samples: bool
    stop_ids: frozenset[int]
    restore: Restore | None = None
    exports: tuple[Export, ...] = ()


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """One position of one sequence.

    Fields:
        position: tokens before it.
        token_id: None: what the previous step, still in flight, draws in row `previous_row`.
        page_ids: block table; holds `position`.
        output_index: of the token drawn.
        is_forced: the drawn token is known already (prior output) and is dropped.
        is_first: of this sequence in this slot; it goes on from a live bundle.
        stop_ids: what would end the request; banned before its min_tokens.
    """

    request: EngineRequest
    state_slot: int
    page_ids: Sequence[int]
    position: int
    token_id: int | None
    previous_row: int | None
    output_index: int
    is_forced: bool
    stop_ids: frozenset[int]
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class SchedulerOutput:
    """One step: a prefill chunk of one sequence, or decode rows, never both.

    Fields:
        saves: executed first; a step may be nothing else.
    """

    step_id: int
    prefill: PrefillChunk | None = None
    decode: tuple[DecodeRow, ...] = ()
    saves: tuple[Save, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Positions this step computes."""
        return len(self.prefill.token_ids) if self.prefill is not None else len(self.decode)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step drew, one entry a row; all empty for a prefill chunk that draws nothing.

    Fields:
        top: the likeliest alternatives (id, logprob), likeliest first; may be empty.
        is_finite: the row's logits hold neither NaN nor infinity.
    """

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    is_finite: list[bool] = field(default_factory=list)
