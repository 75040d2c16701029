"""A scheduler's test partner: executes plans on pages and slots of plain ints.

The token it draws depends on the running hash in the state slot and on every token read back
through the block table, so a wrong page, slot, position or order changes the answer. What a
request must yield is `expected_outputs`, which knows neither pages nor batches.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trnrt_engine.plan import SchedulerOutput, StepResult

VOCAB_SIZE = 97
_MODULUS = 2_147_483_647


def mix(state: int, token_id: int) -> int:
    """Take a token into the running hash."""
    return (state * 1_000_003 + token_id + 1) % _MODULUS


def draw(state: int, tokens: Sequence[int]) -> int:
    """Return the token that follows `tokens`, whose running hash is `state`."""
    return (state + 31 * sum(tokens) + 7 * len(tokens)) % VOCAB_SIZE


def expected_outputs(
    prompt: Sequence[int],
    count: int,
    prior: Sequence[int] = (),
    stop_ids: frozenset[int] = frozenset(),
) -> list[int]:
    """Continue `prompt` + `prior` until a stop id or `count` outputs in all; prior not included."""
    tokens, state = list(prompt), 0
    for token_id in tokens:
        state = mix(state, token_id)
    outputs: list[int] = []
    for token_id in prior:
        tokens.append(token_id)
        state = mix(state, token_id)
    while len(prior) + len(outputs) < count:
        token_id = draw(state, tokens)
        outputs.append(token_id)
        if token_id in stop_ids:
            break
        tokens.append(token_id)
        state = mix(state, token_id)
    return outputs


class QuickModel:
    """Draws the output's own index; for traffic whose tokens do not matter."""

    def run(self, plan: SchedulerOutput) -> StepResult:
        """Execute one plan."""
        rows = [row.output_index % VOCAB_SIZE for row in plan.decode]
        if plan.prefill is not None and plan.prefill.samples:
            rows = [0]
        return StepResult(token_ids=rows, is_finite=[True] * len(rows))

    def skip(self) -> None:
        """Note a step that failed."""


class PagedCounter:
    """Run plans; results of the last plan feed rows whose token is still being drawn."""

    def __init__(self, *, page_size: int) -> None:
        self._page_size = page_size
        self._pages: dict[int, NDArray[np.int64]] = {}
        self._states: dict[int, NDArray[np.int64]] = {}
        self._last: StepResult = StepResult()
        self.bad_slots: set[int] = set()

    def run(self, plan: SchedulerOutput) -> StepResult:
        """Execute one plan."""
        for save in plan.saves:
            self._copy(save.source_slot, save.state_slot, save.page_copies)
        if plan.prefill is not None:
            chunk, restore = plan.prefill, plan.prefill.restore
            if restore is not None:
                self._copy(restore.state_slot, chunk.state_slot, restore.page_copies)
            exports = {export.num_tokens: export.state_slot for export in chunk.exports}
            slot, end = chunk.state_slot, chunk.start + len(chunk.token_ids)
            for offset, token_id in enumerate(chunk.token_ids):
                self._advance(slot, chunk.page_ids, chunk.start + offset, token_id)
                if offset + 1 in exports:
                    self._state(exports[offset + 1])[:] = self._state(slot)
            rows = [(slot, self._draw(slot, chunk.page_ids, end))] if chunk.samples else []
        else:
            rows = []
            for row in plan.decode:
                token_id = row.token_id
                if token_id is None:
                    drawn = self._last.token_ids
                    token_id = drawn[row.previous_row] if drawn else 0
                slot = row.state_slot
                self._advance(slot, row.page_ids, row.position, token_id)
                rows.append((slot, self._draw(slot, row.page_ids, row.position + 1)))
        self._last = StepResult(
            token_ids=[token_id for _, token_id in rows],
            logprobs=[-0.5] * len(rows),
            top=[[(token_id, -0.5)] for _, token_id in rows],
            is_finite=[slot not in self.bad_slots for slot, _ in rows],
        )
        return self._last

    def skip(self) -> None:
        """Note a step that failed: nothing can stand on what it would have drawn."""
        self._last = StepResult()

    def page(self, page_id: int, *, num_tokens: int) -> list[memoryview]:
        """The bytes of the head of a page."""
        return [memoryview(self._page(page_id)[:num_tokens]).cast("B")]

    def states(self, slot: int) -> list[memoryview]:
        """The bytes of a slot."""
        return [memoryview(self._state(slot)).cast("B")]

    def live(self, slot: int) -> list[memoryview]:
        """The bytes of a slot: nothing is open, nothing is remembered to draw by."""
        return self.states(slot)

    def _page(self, page_id: int) -> NDArray[np.int64]:
        if page_id not in self._pages:
            self._pages[page_id] = np.full(self._page_size, -1)
        return self._pages[page_id]

    def _state(self, slot: int) -> NDArray[np.int64]:
        if slot not in self._states:
            self._states[slot] = np.zeros(2, np.int64)
        return self._states[slot]

    def _copy(self, source: int, target: int, page_copies: Sequence[tuple[int, int]]) -> None:
        self._state(target)[:] = self._state(source)
        for from_page, to_page in page_copies:
            self._page(to_page)[:] = self._page(from_page)

    def _advance(self, slot: int, page_ids: Sequence[int], position: int, token_id: int) -> None:
        count, state = self._state(slot).tolist() if position else (0, 0)
        state = mix(state, token_id + 1_000 * (count - position))
        self._state(slot)[:] = (position + 1, state)
        self._page(page_ids[position // self._page_size])[position % self._page_size] = token_id

    def _draw(self, slot: int, page_ids: Sequence[int], num_tokens: int) -> int:
        pages = [self._page(page_id).tolist() for page_id in page_ids]
        seen = [token_id for page in pages for token_id in page][:num_tokens]
        return draw(int(self._state(slot)[1]), seen)
