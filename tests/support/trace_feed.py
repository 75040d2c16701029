"""Feeds a trace to an engine core that runs real steps, what is sent at one moment at a time."""

from __future__ import annotations

from collections.abc import Sequence

from support.stepped import SteppedCore
from trnrt_engine.core import EngineCore
from trnrt_engine.simulate.arrivals import Arrivals
from trnrt_engine.simulate.trace import TraceRequest


def feed(core: EngineCore, requests: Sequence[TraceRequest], *, num_lanes: int) -> None:
    """Send each request when all it waits for has ended and no copy is under way any more."""
    engine, now_s = SteppedCore(core), 0.0
    arrivals = Arrivals(requests, num_lanes=num_lanes)
    while arrivals.next_s is not None:
        now_s = max(now_s, arrivals.next_s)
        sent = [asked for _, asked in arrivals.take(now_s)]
        for asked in sent:
            engine.submit(
                asked.id,
                asked.prompt(core.limits.vocab_size).tolist(),
                max_tokens=asked.num_output_tokens,
                ignore_eos=True,
                marks=asked.marks,
                cache_salt=asked.salt,
            )
        engine.run()
        for asked in sent:
            arrivals.end(asked, now_s)
