"""Chunk or decode, and how large a chunk: a running stream waits no longer than the budget.

There is no step that does both. Between two decodes chunks run as long as what they are expected
to take, and the decode after them, fits the budget; each is as large as fits. Where not even the
smallest fits, one smallest chunk and a decode alternate, so that neither side starves. While
nobody decodes, chunks are as large as they can be. What is not yet known counts as too long: in a
new context the first chunk is a smallest one.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from dataclasses import dataclass

from trnrt_engine.errors import IntegrityError
from trnrt_engine.metrics import EngineMetrics
from trnrt_engine.plan import SchedulerOutput
from trnrt_engine.step_times import PrefillSpeed, StepShape, StepTimes

logger = logging.getLogger(__name__)

# However quick they are: each also delays who arrives now and wants its first token.
MAX_CHUNKS_BETWEEN_DECODES = 3


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step that was planned and has not landed.

    Fields:
        expected_s: how long it takes; infinite for a chunk of which nothing is known.
        num_tokens: prompt tokens it computes. is_prefilling: prompts wait for chunks.
    """

    shape: StepShape
    planned_s: float
    expected_s: float
    num_tokens: int
    is_prefilling: bool


class StallBudget:
    """Choose between chunk and decode by what steps took so far.

    It is told of every step that is planned and of every one that lands, in order; the time
    between is what it learns from. With a step in flight, its expected end counts as now.

    Args:
        budget_s: between two tokens of a running stream.

    Attributes:
        speed: of prefill, as measured.
    """

    def __init__(self, times: StepTimes, *, budget_s: float, metrics: EngineMetrics) -> None:
        if not 0 < budget_s < math.inf:
            raise ValueError(f"budget_s is {budget_s}, must be a positive number of seconds")
        self.times = times
        self.speed = PrefillSpeed()
        self._budget_s = budget_s
        self._metrics = metrics
        self._flights: deque[_Flight] = deque()
        self._decoded_s = -math.inf
        self._landed_s = -math.inf
        self._num_chunks = 0
        self._has_warned = False

    def plan_chunk(
        self,
        start: int,
        remaining: int,
        decode: StepShape | None,
        *,
        ending: StepShape | None = None,
        now_s: float,
    ) -> int:
        """Return how many tokens of a prompt are computed next; 0 when a decode comes first.

        Args:
            start: tokens before the chunk. remaining: those of the prompt behind `start`.
            decode: the decode that waits; None when nobody decodes.
            ending: the decode behind a chunk that computes all `remaining`; None if the same.
        """
        buckets = self.times.prefill_buckets
        if decode is None:
            self._decoded_s, self._num_chunks = now_s, 0
            return min(buckets[-1], remaining)
        if self._num_chunks >= MAX_CHUNKS_BETWEEN_DECODES:
            return 0
        decode_s = self.times.expect(decode)
        room_s = ending_room_s = -math.inf
        if decode_s is not None:
            room_s = self._budget_s - self._waited_s(now_s) - decode_s
            ending_s = self.times.expect(ending or decode)
            ending_room_s = room_s - max((ending_s or decode_s) - decode_s, 0.0)
        chunk_s: float | None = None
        for bucket in reversed(buckets):
            num_tokens = min(bucket, remaining)
            chunk = self.times.chunk_shape(start, num_tokens)
            if bucket > chunk.rows:
                continue
            chunk_s = self.times.expect(chunk)
            if chunk_s is None:
                continue
            if chunk_s <= (room_s if num_tokens < remaining else ending_room_s):
                return num_tokens
        if self._num_chunks:
            return 0
        if decode_s is not None and chunk_s is not None:
            self._count_overrun(chunk_s + decode_s)
        return min(buckets[0], remaining)

    def plan_step(self, plan: SchedulerOutput, *, is_prefilling: bool, now_s: float) -> None:
        """Note a step that is launched now.

        Args:
            is_prefilling: some prompt is not computed.
        """
        chunk, num_tokens = plan.prefill, 0
        if chunk is not None:
            num_tokens = len(chunk.token_ids)
            shape = self.times.chunk_shape(chunk.start, num_tokens)
        else:
            context = max(row.position for row in plan.decode) + 1
            shape = self.times.decode_shape(len(plan.decode), context)
        expected_s = self.times.expect(shape)
        if expected_s is None:
            expected_s = math.inf if shape.is_prefill else 0.0
        self._flights.append(_Flight(shape, now_s, expected_s, num_tokens, is_prefilling))
        self._num_chunks = self._num_chunks + 1 if shape.is_prefill else 0

    def land_step(self, *, now_s: float, has_failed: bool) -> None:
        """Note that the oldest step under way has ended; one that failed says nothing of time."""
        if not self._flights:
            raise IntegrityError("a step landed that was never launched")
        flight = self._flights.popleft()
        seconds = now_s - max(flight.planned_s, self._landed_s)
        self._landed_s = now_s
        if not flight.shape.is_prefill:
            self._decoded_s = now_s
        if has_failed:
            return
        self.times.observe(flight.shape, seconds)
        if flight.is_prefilling:
            self.speed.observe(seconds, flight.num_tokens)

    def _waited_s(self, now_s: float) -> float:
        """Return how long streams will have waited when the steps in flight have ended."""
        free_s, decoded_s = self._landed_s, self._decoded_s
        for flight in self._flights:
            free_s = max(max(flight.planned_s, free_s) + flight.expected_s, now_s)
            if not flight.shape.is_prefill:
                decoded_s = free_s
        return max(free_s, now_s) - decoded_s

    def _count_overrun(self, expected_s: float) -> None:
        self._metrics.stall_overruns += 1
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "stall budget cannot be kept budget_ms=%.0f smallest_chunk_and_decode_ms=%.0f",
                *(self._budget_s * 1e3, expected_s * 1e3),
            )
