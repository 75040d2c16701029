"""Speed of the model beside its reference implementation, on the same weights.

    make bench        or, with options, `hatch run bench:model --rounds 5 --skip-memory`

One thread, process CPU time, all sides interleaved, the minimum of `--rounds` rounds. Prints the
table and writes it to docs/results.md. Only ratios within one run mean anything: the last column of
each row says how far two halves of the rounds lie apart; above 10% the machine was too busy.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from contestants import Contestant, Run, Transformers, Trnrt
from results import write_section
from toy import write_toy

from trnrt_kernels.numeric import NumericMode

RESULTS = Path(__file__).parents[2] / "docs" / "results.md"
TITLE = "Model step, one CPU thread"
EQUAL_LOGITS = 5e-3  # float32 rounding of two implementations; a bug starts at 1e-1
LONG_CONTEXT = 32_768


@dataclass
class Timing:
    """CPU times of one run by one side, a value a round, in milliseconds."""

    scenario: str
    side: str
    rounds: list[float] = field(default_factory=list)

    @property
    def best(self) -> float:
        """Minimum over all rounds."""
        return min(self.rounds)

    @property
    def spread(self) -> float:
        """How far the minima of even and odd rounds lie apart."""
        halves = [min(self.rounds[i::2]) for i in range(min(2, len(self.rounds)))]
        return max(halves) / min(halves) - 1


@dataclass(frozen=True)
class Goal:
    """A required ratio, what was predicted for it and what was measured."""

    name: str
    required: str
    predicted: str
    measured: float
    holds: bool


def measure(scenario: str, runs: dict[str, Run], *, rounds: int, repeats: int) -> list[Timing]:
    """Interleave the sides: every round runs each of them `repeats` times and keeps the best."""
    timings = {side: Timing(scenario, side) for side in runs}
    for run in runs.values():
        run()
    for _ in range(rounds):
        for side, run in runs.items():
            timings[side].rounds.append(min(cpu_ms(run) for _ in range(repeats)))
    for timing in timings.values():
        print(f"{scenario:22} {timing.side:14} {timing.best:10.2f} ms  A/A {timing.spread:6.1%}")
    return list(timings.values())


def cpu_ms(run: Run) -> float:
    """Process CPU time of one call in milliseconds."""
    start = time.process_time_ns()
    run()
    return (time.process_time_ns() - start) / 1e6


def measure_all(folder: Path, rounds: int, prompt: int) -> list[Timing]:
    """All scenarios of the table."""
    fast, strict = Trnrt(folder, NumericMode.FAST), Trnrt(folder, NumericMode.STRICT)
    reference = Transformers(folder)
    sides: list[Contestant] = [reference, fast, strict]
    check_equal(sides)
    gc.freeze()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4096, (prompt,), generator=generator)
    timings = measure(
        f"prefill {prompt:,}", {s.name: s.prefill(ids) for s in sides}, rounds=rounds, repeats=1
    )
    decode: list[tuple[int, int, Sequence[Contestant]]] = [
        (1, 512, sides),
        (4, 512, (fast, strict)),
        (8, 512, sides),
        (12, 512, (fast, strict)),
    ]
    for batch, context, chosen in decode:
        runs = {s.name: s.decode(batch, context) for s in chosen}
        timings += measure(f"decode B{batch} @{context:,}", runs, rounds=2 * rounds, repeats=4)
    # The two contexts are interleaved with each other: their ratio is a goal.
    growth = {f"{c:,}": fast.decode(1, c) for c in (512, LONG_CONTEXT)}
    timings += measure("decode B1 fast at", growth, rounds=2 * rounds, repeats=4)
    return timings


def check_equal(sides: Sequence[Contestant]) -> None:
    """All sides must compute the same model before their times mean anything."""
    ids = torch.randint(4096, (192,), generator=torch.Generator().manual_seed(2))
    logits = [side.prefill(ids)() for side in sides]
    for side, other in zip(sides[1:], logits[1:], strict=True):
        error = (other - logits[0]).abs().max().item()
        print(f"logits of {side.name} against {sides[0].name}: {error:.1e}")
        if not error < EQUAL_LOGITS:
            raise SystemExit(f"{side.name} computes something else: {error:.1e} off")


def measure_memory(folder: Path, tokens: int) -> tuple[float, float]:
    """Peak memory and cache bytes of a process that prefills `tokens`, in MiB."""
    command = [sys.executable, __file__, "--memory-of", str(tokens), "--folder", str(folder)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    peak, caches = json.loads(output.splitlines()[-1])
    print(f"prefill {tokens:,}: peak {peak:.0f} MiB, of it caches {caches:.1f} MiB")
    return peak, caches


def memory_child(folder: Path, tokens: int) -> None:
    """Prefill and print [peak, caches] in MiB."""
    side = Trnrt(folder, NumericMode.FAST)
    caches = side.caches(tokens)
    ids = torch.randint(4096, (tokens,), generator=torch.Generator().manual_seed(1))
    side.prefill_into(caches, ids)()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([peak, caches.num_bytes / 2**20]))


def goals(timings: list[Timing], memory: dict[int, tuple[float, float]]) -> list[Goal]:
    """The required ratios."""
    best = {(t.scenario, t.side): t.best for t in timings}
    prefill = next(t.scenario for t in timings if t.scenario.startswith("prefill"))

    def ratio(scenario: str, over: str, under: str) -> float:
        return best[scenario, over] / best[scenario, under]

    found = [
        at_least(f"{prefill}: transformers / fast", 4.0, "4.3", ratio(prefill, *VERSUS)),
        at_least("decode B1 @512: transformers / fast", 2.0, "2.4", ratio(DECODE_1, *VERSUS)),
        at_most(
            "decode B1: 32k / 512 context",
            1.35,
            "1.19",
            ratio("decode B1 fast at", f"{LONG_CONTEXT:,}", "512"),
        ),
        at_most(f"{prefill}: strict / fast", 1.10, "1.03", ratio(prefill, *MODES)),
        at_most("decode B4: strict / fast", 1.10, "1.00", ratio("decode B4 @512", *MODES)),
        at_most("decode B12: strict / fast", 1.10, "1.00", ratio("decode B12 @512", *MODES)),
    ]
    if memory:
        (short, long), caches = sorted(memory), {n: c for n, (_, c) in memory.items()}
        allowed = memory[short][0] + caches[long] - caches[short]
        found.append(
            at_most(
                "peak of a 32k prefill / (4k peak + cache growth)",
                1.10,
                "1.00",
                memory[long][0] / allowed,
            )
        )
    return found


VERSUS = ("transformers", "trnrt fast")
MODES = ("trnrt strict", "trnrt fast")
DECODE_1 = "decode B1 @512"


def at_least(name: str, bound: float, predicted: str, measured: float) -> Goal:
    return Goal(name, f">= {bound:.2f}", predicted, measured, measured >= bound)


def at_most(name: str, bound: float, predicted: str, measured: float) -> Goal:
    return Goal(name, f"<= {bound:.2f}", predicted, measured, measured <= bound)


def report(timings: list[Timing], found: list[Goal], rounds: int) -> str:
    """The section of docs/results.md."""
    sides = ["transformers", "trnrt fast", "trnrt strict"]
    lines = [
        f"- Machine: {cpu_name()}, one thread; torch {torch.__version__}, Python "
        f"{platform.python_version()}",
        f"- Date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        f"- Command: `make bench` (`python {' '.join(sys.argv)}`), minimum of {rounds} rounds",
        "- Model: the 53M toy of `tests/bench/toy.py`, float32, eager; transformers 5.24 with its "
        "default attention on the same weights",
        "",
        "CPU time in ms; in brackets how far two halves of the rounds lie apart.",
        "",
        "| | " + " | ".join(sides) + " |",
        "| --- |" + " ---: |" * len(sides),
    ]
    rows: dict[str, dict[str, Timing]] = {}
    for timing in timings:
        rows.setdefault(timing.scenario, {})[timing.side] = timing
    for scenario, row in rows.items():
        if scenario.endswith(" at"):
            continue
        cells = [f"{row[s].best:,.1f} ({row[s].spread:.0%})" if s in row else "-" for s in sides]
        lines.append(f"| {scenario} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "| goal | required | predicted | measured | |",
        "| --- | --- | --- | ---: | --- |",
    ]
    lines += [
        f"| {g.name} | {g.required} | {g.predicted} | {g.measured:.2f} | "
        f"{'holds' if g.holds else 'does not hold'} |"
        for g in found
    ]
    return "\n".join(lines)


def cpu_name() -> str:
    """Model name and instruction sets that matter, as the kernel reports them."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in info.splitlines() if "model name" in line]
    return (
        f"{names[0] if names else platform.processor()} ({torch.backends.cpu.get_cpu_capability()})"
    )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="of prefill; decode takes twice")
    parser.add_argument("--prompt", type=int, default=4096, help="tokens of the prefill row")
    parser.add_argument("--skip-memory", action="store_true")
    parser.add_argument("--no-write", action="store_true", help="leave docs/results.md alone")
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory_of:
        memory_child(options.folder, options.memory_of)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = write_toy(Path(temporary) / "toy")
        lengths = () if options.skip_memory else (4096, LONG_CONTEXT)
        memory = {tokens: measure_memory(folder, tokens) for tokens in lengths}
        timings = measure_all(folder, options.rounds, options.prompt)
    found = goals(timings, memory)
    text = report(timings, found, options.rounds)
    print(text)
    if not options.no_write:
        write_section(RESULTS, TITLE, text)
    missed = [goal.name for goal in found if not goal.holds]
    raise SystemExit(f"goals missed: {'; '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
