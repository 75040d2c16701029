"""CPU time of the scheduler per step at batch 12, without a model.

    python tests/bench/scheduler.py [--steps 3000] [--waiting 0]

Prints the mean and the worst of schedule + commit over decode steps, long contexts included.
Required: at most 1 ms a step.
"""

from __future__ import annotations

import argparse
import statistics
import time

from trnrt_engine.api import EngineRequest, SamplingParams
from trnrt_engine.cache.manager import CacheManager
from trnrt_engine.intake import RequestLimits, make_request
from trnrt_engine.metrics import EngineMetrics
from trnrt_engine.plan import SchedulerOutput, StepResult
from trnrt_engine.scheduler import Scheduler
from trnrt_engine.stall_budget import StallBudget
from trnrt_engine.step_times import StepTimes

BATCH = 12
PROMPT_TOKENS = 32_768
WINDOW = 131_072
PAGE_SIZE = 256


def make_scheduler(*, num_waiting: int, max_tokens: int) -> Scheduler:
    """A scheduler with twelve long sequences and `num_waiting` behind them."""
    num_pages = BATCH * WINDOW // PAGE_SIZE
    metrics = EngineMetrics()
    scheduler = Scheduler(
        cache=CacheManager(
            num_pages=num_pages, page_size=PAGE_SIZE, num_state_slots=BATCH, num_scratch=BATCH
        ),
        metrics=metrics,
        max_num_seqs=BATCH,
        stall_budget=StallBudget(
            StepTimes(
                prefill_buckets=(512, 1024, 2048),
                decode_buckets=(4, 8, 12),
                context_buckets=(8192, 32_768, WINDOW),
            ),
            budget_s=0.5,
            metrics=metrics,
        ),
        clock=time.monotonic,
    )
    limits = RequestLimits(
        vocab_size=154_880,
        max_model_len=WINDOW,
        num_pages=num_pages,
        page_size=PAGE_SIZE,
        eos_token_ids=(154_820, 154_827, 154_829),
    )
    prompt = list(range(PROMPT_TOKENS))
    for index in range(BATCH + num_waiting):
        spec = EngineRequest(
            request_id=f"r{index}",
            token_ids=prompt,
            sampling=SamplingParams(max_tokens=max_tokens, num_logprobs=5),
            deadline_s=3600.0,
        )
        scheduler.add(make_request(spec, limits, arrival_s=time.monotonic()))
    return scheduler


def result_of(plan: SchedulerOutput) -> StepResult:
    """A result as a step would give it, 20 alternatives a row."""
    num_rows = 1 if plan.prefill is not None else len(plan.decode)
    top = [(token_id, -1.0) for token_id in range(20)]
    return StepResult(
        token_ids=[5] * num_rows,
        logprobs=[-0.5] * num_rows,
        top=[top] * num_rows,
        is_finite=[True] * num_rows,
    )


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--waiting", type=int, default=0)
    arguments = parser.parse_args()
    scheduler = make_scheduler(num_waiting=arguments.waiting, max_tokens=arguments.steps + 2000)
    times_ms: list[float] = []
    while len(times_ms) < arguments.steps:
        started_s = time.process_time()
        plan = scheduler.schedule()
        scheduled_s = time.process_time()
        assert plan is not None
        result = result_of(plan)
        resumed_s = time.process_time()
        scheduler.commit(plan, result)
        scheduler.take_deltas()
        ended_s = time.process_time()
        if len(plan.decode) == BATCH:
            times_ms.append((scheduled_s - started_s + ended_s - resumed_s) * 1e3)
    print(
        f"scheduler CPU a decode step, batch {BATCH}, {arguments.waiting} waiting, "
        f"n={len(times_ms)}: median {statistics.median(times_ms):.3f} ms, "
        f"mean {statistics.mean(times_ms):.3f} ms, worst {max(times_ms):.3f} ms (required <= 1 ms)"
    )


if __name__ == "__main__":
    main()
