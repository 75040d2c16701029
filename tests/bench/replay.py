"""Token hit rate of made-up agent sessions, replayed without a model, against what is possible.

    python tests/bench/replay.py [--sessions 200] [--no-write]

Memory suffices when it holds every page of every session and one set of states a session; it is
split between pages and states as the engine splits it. Required: then within 1% of a cache that
never evicts and can be hit at every multiple of 64; with a quarter of it at least 0.9 of the best
of LRU, coverage alone and a bound no policy exceeds (`tests/bench/offline_bound.py`).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from offline_bound import bound_tokens
from results import RESULTS, Goal, conclude, goal_table, provenance

from trnrt_engine.cache.bundles import Bundle
from trnrt_engine.cache.coverage import EvictionOrder
from trnrt_engine.simulate.endless import prefixes_of
from trnrt_engine.simulate.generate import SessionMix, generate
from trnrt_engine.simulate.replay import Replay
from trnrt_engine.simulate.sizes import EngineSizes
from trnrt_engine.simulate.trace import BLOCK_TOKENS, TraceRequest

GIB = 2**30
SHARES = (1.0, 0.25)
TITLE = "Replay of agent sessions"


class Lru(EvictionOrder):
    """What was used longest ago goes first, whatever it is."""

    def grade(self, path: list[Bundle]) -> None:
        """Nothing is surplus."""

    def slot_victim(self, *, surplus_only: bool) -> Bundle | None:
        """Any may go."""
        return super().slot_victim(surplus_only=False)


class CoverageOnly(EvictionOrder):
    """Surplus goes first, then what was made longest ago; use counts for nothing."""

    def touch(self, bundle: Bundle) -> None:
        """Its place stays."""


POLICIES: dict[str, Callable[[], EvictionOrder]] = {
    "engine": EvictionOrder,
    "LRU": Lru,
    "coverage alone": CoverageOnly,
}


@dataclass(frozen=True, slots=True)
class Run:
    """Hit tokens by policy at one budget, of a cache that never evicts, and the bound."""

    share: float
    hits: dict[str, int]
    endless: int
    bound: float


def memory_bytes(requests: list[TraceRequest], sizes: EngineSizes) -> int:
    """Return the bytes of every page and of one set of states a session."""
    blocks = {prefix for request in requests for prefix in prefixes_of(request)}
    num_sessions = len({request.session for request in requests})
    page_bytes = len(blocks) * BLOCK_TOKENS * sizes.page_bytes // sizes.page_size
    return page_bytes + num_sessions * sizes.state_bytes


def replayed(
    requests: list[TraceRequest], sizes: EngineSizes, order: Callable[[], EvictionOrder]
) -> Replay:
    """Replay a trace with an order of eviction in place of the engine's."""
    replay = Replay(requests, sizes)
    replay.cache._prefix._order = order()
    replay.run()
    return replay


def run_at(requests: list[TraceRequest], share: float, whole_bytes: int) -> Run:
    """Replay with a share of the memory under every policy."""
    sizes, hits = EngineSizes.released(int(share * whole_bytes)), {}
    for name in POLICIES if share < 1 else ("engine",):
        replay = replayed(requests, sizes, POLICIES[name])
        outcomes = list(replay.outcomes.values())
        hits[name] = sum(outcome.match.state_depth for outcome in outcomes)
        if name == "engine":
            endless = sum(outcome.endless_tokens for outcome in outcomes)
            bound = bound_tokens(outcomes, sizes)
            assert hits[name] <= bound * (1 + 1e-9)
        print(
            f"{share:g} of the memory, {name}: {hits[name]:,} tokens; never evicting {endless:,}, "
            f"bound {bound:,.0f}",
            flush=True,
        )
    return Run(share, hits, endless, bound)


def report(requests: list[TraceRequest], mix: SessionMix) -> tuple[str, list[Goal]]:
    """Measure all; returns the section and its goals."""
    whole_bytes = memory_bytes(requests, EngineSizes.released(GIB))
    runs = [run_at(requests, share, whole_bytes) for share in SHARES]
    prompt_tokens = sum(request.num_prompt_tokens for request in requests)
    ample, quarter = runs[0], runs[1]
    best = max(quarter.bound, *quarter.hits.values())
    goals = [
        Goal(
            "hits / never evicting, memory suffices",
            0.995,
            ample.hits["engine"] / ample.endless,
            "{:.4f}",
            least=0.99,
        ),
        Goal(
            "hits / best of LRU, coverage alone and the bound, a quarter of it",
            0.95,
            quarter.hits["engine"] / best,
            "{:.4f}",
            least=0.9,
        ),
    ]
    names = list(POLICIES)
    lines = [
        *provenance("python tests/bench/replay.py"),
        f"- {len({r.session for r in requests}):,} sessions, {mix.num_sessions} of them roots, "
        f"{len(requests):,} requests, {prompt_tokens:,} prompt tokens, seed {mix.seed}; a session "
        f"starts every {mix.start_every_s:g} s of virtual time; sizes of "
        "GLM-5.3-Flash with FP8 pages",
        f"- Memory suffices: {whole_bytes / GIB:,.0f} GiB, every page of every session and one set "
        "of states a session",
        "",
        *goal_table(goals),
        "",
        "Hit share of all prompt tokens:",
        "",
        f"| memory | {' | '.join(names)} | bound | never evicting | engine / bound |",
        "| --- |" + " ---: |" * (len(names) + 3),
    ]
    for run in runs:
        cells = [
            f"{run.hits[name] / prompt_tokens:.2%}" if name in run.hits else "-" for name in names
        ]
        cells += [f"{count / prompt_tokens:.2%}" for count in (run.bound, run.endless)]
        cells.append(f"{run.hits['engine'] / run.bound:.3f}")
        lines.append(f"| {run.share:g} | {' | '.join(cells)} |")
    return "\n".join(lines), goals


def main() -> None:
    """Run, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-write", action="store_true", help="print only")
    arguments = parser.parse_args()
    mix = SessionMix(num_sessions=arguments.sessions, seed=arguments.seed)
    text, goals = report(generate(mix), mix)
    conclude(RESULTS, TITLE, text, goals, is_written=not arguments.no_write)


if __name__ == "__main__":
    main()
