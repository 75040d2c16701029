"""An engine core stepped by hand, integrity checked after every step."""

from __future__ import annotations

import time
from collections.abc import Callable

from trnrt_engine.api import CacheReport, EngineRequest, SamplingParams, TokenDelta
from trnrt_engine.core import EngineCore, Stepper
from trnrt_engine.intake import make_request

REQUEST_FIELDS = frozenset(EngineRequest.__struct_fields__)


class SteppedCore:
    """The engine's own steps, without its thread.

    Args:
        clock: the core's own.

    Attributes:
        deltas: all deltas of a request, by id.
    """

    def __init__(self, core: EngineCore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.core = core
        self.deltas: dict[str, list[TokenDelta]] = {}
        self._clock = clock
        self._stepper = Stepper(core, clock=clock)

    def submit(
        self, name: str, prompt: list[int], *, prior: list[int] | None = None, **sampling
    ) -> None:
        """Queue a request; greedy and 8 tokens unless told otherwise.

        Sampling fields and request fields may be mixed.
        """
        fields = {k: sampling.pop(k) for k in list(sampling) if k in REQUEST_FIELDS}
        spec = EngineRequest(
            request_id=name,
            token_ids=prompt,
            prior_output_ids=prior or [],
            sampling=SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **sampling}),
            **fields,
        )
        self.core.scheduler.add(make_request(spec, self.core.limits, arrival_s=self._clock()))
        self._settle(self.core.scheduler.take_deltas())

    def abort(self, name: str) -> None:
        """Abort between two steps."""
        self.core.scheduler.abort(name)
        self._settle(self.core.scheduler.take_deltas())

    def step(self) -> bool:
        """Run one step; False when no request and no copy is left."""
        self._settle(self._stepper.step())
        return self.core.scheduler.has_work or self.core.cache.is_copying

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

    def report(self, name: str) -> CacheReport:
        """What a request that has started found in the prefix cache."""
        first, *later = self.deltas[name]
        assert all(delta.cache_report is None for delta in later)
        return first.cache_report

    def is_all_free(self) -> bool:
        """Every page and slot is free, once what is cached is forgotten."""
        cache = self.core.cache
        cache.flush()
        cache.check_integrity([])
        return (
            cache.num_free_pages == cache.num_pages
            and cache.num_free_state_slots == cache.num_state_slots
        )

    def _settle(self, deltas: list[TokenDelta]) -> None:
        self.core.scheduler.check_integrity()
        for delta in deltas:
            self.deltas.setdefault(delta.request_id, []).append(delta)
