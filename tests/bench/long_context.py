"""One million tokens through a real engine, and what selection costs along the way.

    python tests/bench/long_context.py run [--tokens 1047552]     half an hour of CPU
    python tests/bench/long_context.py select                     a minute
    python tests/bench/long_context.py decode                     some minutes
    python tests/bench/long_context_report.py                     writes docs/results.md

Each part appends what it measured to a file of JSON lines (`--log`), one thread, process CPU time;
the report draws and words what is there and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.long_prompt import LongEngine, LongTurns, SelectionClock, live_long
from support.released_ratio import TEXT_CHANGES, decode_inputs, filled_caches
from support.tiny_checkpoint import make_tiny_checkpoint
from trnrt_engine.plan import SchedulerOutput
from trnrt_kernels.models.glm5_next.config import Glm5NextConfig
from trnrt_kernels.models.glm5_next.model import Model
from trnrt_kernels.models.glm5_next.weights import load_weights
from trnrt_kernels.numeric import NumericMode
from trnrt_kernels.reference import indexer
from trnrt_kernels.reference.paging import BatchPages, ChunkPages, Pages
from trnrt_kernels.serving import PAGE_SIZE

WINDOW = 1_048_576
SHORTER_BY = 1024  # room for the answers and the second turn
LOG = Path("build/long_context.jsonl")
SAY_EVERY = 16_384
POOLS = (8192, 262_144)
KPOOL = 4
NUM_SELECTED = TEXT_CHANGES["index_topk"] // KPOOL  # as released


@dataclass(frozen=True)
class Run:
    """Something to time, and how many scores it makes or searches."""

    call: Callable[[], object]
    num_scores: int


class Log:
    """A file of JSON lines; each is also progress to look at."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("a", encoding="utf-8")

    def write(self, kind: str, **values: Any) -> None:
        """Append a line and print it."""
        line = json.dumps(
            {"kind": kind, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())} | values
        )
        print(line, flush=True)
        self._file.write(line + "\n")
        self._file.flush()


def resident_bytes() -> dict[str, int]:
    """Resident memory of this process: its own, mapped files (the host tier too), the peak."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    fields = {line.split(":")[0]: line.split() for line in lines}
    return {
        "own": int(fields["RssAnon"][1]) * 1024,
        "files": (int(fields["RssFile"][1]) + int(fields["RssShmem"][1])) * 1024,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


class Steps:
    """Sums the CPU time of steps and logs it: every so many prompt tokens, every decode."""

    def __init__(self, log: Log, clock: SelectionClock) -> None:
        self._log = log
        self._clock = clock
        self.prefill_s = 0.0
        self._seen = (0.0, 0.0)

    def take(self, plan: SchedulerOutput, cpu_s: float) -> None:
        """Note a step."""
        dots_s, search_s = self._clock.dots_s, self._clock.search_s
        if plan.prefill is None:
            self._log.write("decode", position=plan.decode[0].position, cpu_s=cpu_s)
            return
        end = plan.prefill.start + len(plan.prefill.token_ids)
        self.prefill_s += cpu_s
        if end % SAY_EVERY == 0 or plan.prefill.samples:
            self._log.write(
                "prefill",
                tokens=end,
                cpu_s=round(self.prefill_s, 3),
                dots_s=round(dots_s, 3),
                search_s=round(search_s, 3),
                resident=resident_bytes(),
            )


def run(log: Log, num_tokens: int, window: int) -> None:
    """The life of one long prompt."""
    warm_up()
    log.write("baseline", resident=resident_bytes())
    clock = SelectionClock()
    steps = Steps(log, clock)
    with tempfile.TemporaryDirectory(prefix="long-context-") as folder:
        engine = LongEngine(Path(folder), window=window, on_step=steps.take)
        memory, caches = engine.memory, engine.caches
        log.write(
            "start",
            tokens=num_tokens,
            window=window,
            threads=torch.get_num_threads(),
            torch=torch.__version__,
            machine=platform.machine(),
            planned=dict(memory.rows),
            num_pages=memory.num_pages,
            num_scratch=memory.num_scratch,
            cache_tensor_bytes=caches.num_bytes,
            resident=resident_bytes(),
        )
        steps.prefill_s = clock.dots_s = clock.search_s = 0.0
        with clock.installed():
            turns = live_long(engine, num_tokens, say=lambda text: log.write("say", text=text))
        log_turns(log, turns)
        counters = engine.core.cache.tier_counters
        log.write(
            "end",
            bytes_written=dict(counters.bytes_written),
            bytes_loaded=dict(counters.bytes_loaded),
            resident=resident_bytes(),
        )
        engine.close()


def warm_up() -> None:
    """Load every library and kernel a long run uses, on a window of some thousand tokens."""
    with tempfile.TemporaryDirectory(prefix="long-context-") as folder:
        engine = LongEngine(Path(folder), window=4096, store_gib=0.25)
        live_long(engine, 4096 - 512, say=lambda text: None)
        engine.close()


def log_turns(log: Log, turns: LongTurns) -> None:
    """One line an answer, and whether those that must be equal are."""
    for name in ("cold", "next_turn", "host", "disk"):
        answer = getattr(turns, name)
        log.write(
            "answer",
            name=name,
            ids=answer.ids,
            cached=answer.num_cached_tokens,
            computed=answer.num_computed_tokens,
            tier=answer.report.tier,
            reason=str(answer.report.reason),
            cpu_s=round(answer.cpu_s, 3),
        )
    same = turns.next_turn.tokens == turns.host.tokens == turns.disk.tokens
    log.write("equal", logprobs_of_all_tiers=same)


def measure_selection(log: Log, rounds: int) -> None:
    """Cost per pool of searching scores, and of scoring and searching, in short and long rows."""
    for order in ("random", "ascending", "descending", "equal"):
        runs = {n: search_run(order, n) for n in POOLS}
        log.write("search", order=order, k=NUM_SELECTED, ns_per_pool=per_pool_ns(runs, rounds))
    for rows in (1, 16):
        runs = {n: select_run(n, rows) for n in POOLS}
        log.write("select", rows=rows, k=NUM_SELECTED, ns_per_pool=per_pool_ns(runs, rounds))


def search_run(order: str, num_pools: int) -> Run:
    """Search one row of scores in some order."""
    ramp = torch.arange(num_pools, dtype=torch.float32)
    scores = {
        "random": torch.randn(num_pools, generator=torch.Generator().manual_seed(0)),
        "ascending": ramp,
        "descending": -ramp,
        "equal": torch.zeros(num_pools),
    }[order].unsqueeze(0)
    limits = torch.tensor([num_pools])
    return Run(lambda: indexer._best(scores, limits, NUM_SELECTED), num_pools)


def select_run(num_pools: int, rows: int) -> Run:
    """Score and search: a chunk's rows, or one decoded token, at the released head ratio."""
    heads, size = TEXT_CHANGES["index_n_heads"], TEXT_CHANGES["index_head_dim"]
    generator = torch.Generator().manual_seed(0)
    num_tokens = num_pools * KPOOL
    num_pages = num_tokens // PAGE_SIZE
    keys = torch.randn(num_pages + 1, PAGE_SIZE // KPOOL, size, generator=generator)
    table = torch.randperm(num_pages, generator=generator) + 1
    query = indexer.IndexQuery(
        torch.randn(rows, heads, size, generator=generator),
        torch.randn(rows, heads, generator=generator),
    )
    sizes = {"page_size": PAGE_SIZE, "pool_size": KPOOL}
    pages: Pages = (
        BatchPages(torch.tensor([num_tokens - 2]), table.unsqueeze(0), **sizes)
        if rows == 1
        else ChunkPages(
            torch.tensor([num_tokens - rows]), torch.tensor([rows]), table, num_rows=rows, **sizes
        )
    )
    return Run(
        lambda: indexer.select(query, keys, pages, num_selected=NUM_SELECTED), rows * num_pools
    )


def per_pool_ns(runs: dict[int, Run], rounds: int) -> dict[int, float]:
    """Minimum CPU time of interleaved rounds, per query and pool."""
    best = dict.fromkeys(runs, float("inf"))
    with torch.inference_mode():
        for _ in range(rounds + 1):
            for n, run_ in runs.items():
                started_ns = time.process_time_ns()
                run_.call()
                best[n] = min(best[n], (time.process_time_ns() - started_ns) / run_.num_scores)
    return {n: round(value, 2) for n, value in best.items()}


def measure_decode(log: Log, rounds: int) -> None:
    """A decode step at 8k and at 1M, on the released model divided by 8."""
    with tempfile.TemporaryDirectory(prefix="long-context-") as folder:
        make_tiny_checkpoint(
            Path(folder), fp8=False, dtype=torch.float32, num_shards=1, **TEXT_CHANGES
        )
        config = Glm5NextConfig.from_dir(folder)
        weights = load_weights(folder, config)
    caches = filled_caches(config, WINDOW)
    model = Model(config, weights, numeric_mode=NumericMode.FAST)
    times_ms: dict[int, list[float]] = {8192: [], WINDOW: []}
    for _ in range(rounds + 1):
        for context, kept in times_ms.items():
            inputs = decode_inputs(context, num_pages=WINDOW // PAGE_SIZE)
            started_s = time.process_time()
            model.decode(inputs, caches)
            kept.append((time.process_time() - started_s) * 1e3)
    best = {context: round(min(kept[1:]), 2) for context, kept in times_ms.items()}
    log.write("decode_step", mode="fast", cpu_ms=best, rounds=rounds)


def main() -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["run", "select", "decode"])
    parser.add_argument("--tokens", type=int, default=WINDOW - SHORTER_BY)
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--log", type=Path, default=LOG)
    options = parser.parse_args()
    torch.set_num_threads(1)
    log = Log(options.log)
    if options.part == "run":
        run(log, options.tokens, options.window)
    elif options.part == "select":
        measure_selection(log, options.rounds)
    else:
        measure_decode(log, options.rounds)


if __name__ == "__main__":
    main()
