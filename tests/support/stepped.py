"""An engine core stepped by hand, integrity checked after every step."""

from __future__ import annotations

from collections import deque

from trnrt_engine.api import EngineRequest, SamplingParams, TokenDelta
from trnrt_engine.intake import make_request
from trnrt_engine.loop import EngineCore, StepHandle
from trnrt_engine.plan import SchedulerOutput


class SteppedCore:
    """Does what the loop does, without its thread.

    Attributes:
        deltas: all deltas of a request, by id.
    """

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.deltas: dict[str, list[TokenDelta]] = {}
        self._in_flight: deque[tuple[SchedulerOutput, StepHandle]] = deque()

    def submit(
        self, name: str, prompt: list[int], *, prior: list[int] | None = None, **sampling
    ) -> None:
        """Queue a request; greedy and 8 tokens unless told otherwise."""
        spec = EngineRequest(
            request_id=name,
            token_ids=prompt,
            prior_output_ids=prior or [],
            sampling=SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **sampling}),
        )
        self.core.scheduler.add(make_request(spec, self.core.limits, arrival_s=0.0))
        self._settle()

    def abort(self, name: str) -> None:
        """Abort between two steps."""
        self.core.scheduler.abort(name)
        self._settle()

    def step(self) -> bool:
        """Run one step; False when no request is left."""
        scheduler = self.core.scheduler
        plan = scheduler.schedule()
        if plan is not None:
            self._in_flight.append((plan, self.core.runner.launch(plan)))
        while len(self._in_flight) > (self.core.num_steps_ahead if plan is not None else 0):
            landed, handle = self._in_flight.popleft()
            scheduler.commit(landed, handle.result())
        self._settle()
        return scheduler.has_work

    def run(self) -> None:
        """Step until no request is left."""
        while self.step():
            pass

    def tokens(self, name: str) -> list[int]:
        """All tokens handed out for a request."""
        return [token_id for delta in self.deltas.get(name, []) for token_id in delta.token_ids]

    def logprobs(self, name: str) -> list[object]:
        """All logprobs handed out for a request."""
        return [entry for delta in self.deltas[name] for entry in delta.logprobs or []]

    def end(self, name: str) -> TokenDelta:
        """The last delta of a request that has ended."""
        last = self.deltas[name][-1]
        assert last.finish_reason is not None
        return last

    def is_all_free(self) -> bool:
        """Every page and slot is free."""
        cache = self.core.cache
        return (
            cache.num_free_pages == cache.num_pages
            and cache.num_free_state_slots == cache.num_state_slots
        )

    def _settle(self) -> None:
        self.core.scheduler.check_integrity()
        for delta in self.core.scheduler.take_deltas():
            self.deltas.setdefault(delta.request_id, []).append(delta)
