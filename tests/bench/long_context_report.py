"""Words and draws what `long_context.py` measured: a section of docs/results.md and a picture.

    python tests/bench/long_context_report.py [--log build/long_context.jsonl]

Nothing is measured here. Missed goals are named and make the exit code 1.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from line_chart import Line, line_chart
from model import cpu_name
from results import write_section

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.long_prompt import SLOT_BYTES, STATE_BYTES, TOKEN_BYTES, cache_arithmetic
from trnrt_kernels.serving import PAGE_SIZE

DOCS = Path(__file__).parents[2] / "docs"
PICTURE = DOCS / "long-context.svg"
TITLE = "One million tokens"
LENGTHS = (131_072, 262_144, 524_288, 1_048_576)
PARTS = ("dots", "search", "rest")
PART_NAMES = {
    "dots": "index scores (dot products)",
    "search": "search for the best pools",
    "rest": "everything else",
}
ID_BYTES = 8 + 4 + 4  # of a prompt's token: in its list, in the prefix key, in the tree
Entry = dict[str, Any]


@dataclass(frozen=True)
class Fit:
    """`time(T) = linear * T + quadratic * T^2`, seconds."""

    linear: float
    quadratic: float

    @classmethod
    def of(cls, points: Iterable[tuple[int, float]]) -> Fit:
        """Least squares of relative errors, so that the longest run does not decide alone."""
        rows = [(t / s, t * t / s) for t, s in points]
        solution = torch.linalg.lstsq(
            torch.tensor(rows, dtype=torch.float64), torch.ones(len(rows), 1, dtype=torch.float64)
        ).solution.flatten()
        return cls(*solution.tolist())

    def at(self, tokens: float) -> float:
        """Seconds at a length."""
        return self.linear * tokens + self.quadratic * tokens**2


@dataclass(frozen=True)
class Goal:
    """A requirement and what was measured for it."""

    name: str
    required: str
    predicted: str
    measured: str
    holds: bool


class Report:
    """What the log of a run holds, by kind of line.

    Attributes:
        cold: lines of the first answer's prefill, the prompt's length growing.
        points: lengths where the time is fitted: `LENGTHS`, as far as the run has come.
    """

    def __init__(self, entries: list[Entry]) -> None:
        self.by_kind: dict[str, list[Entry]] = {}
        for entry in entries:
            self.by_kind.setdefault(entry["kind"], []).append(entry)
        self.start = self.by_kind["start"][-1]
        behind = entries[entries.index(self.start) :]
        self.cold = [
            entry
            for entry in takewhile(lambda entry: entry["kind"] != "decode", behind)
            if entry["kind"] == "prefill"
        ]
        self.is_complete = any(entry["kind"] == "end" for entry in behind)
        reached = 1.01 * self.cold[-1]["tokens"]
        self.points = [self._nearest(length) for length in LENGTHS if length <= reached]

    @cached_property
    def fits(self) -> dict[str, Fit]:
        """A fit of the whole time and of each part."""
        return {
            part: Fit.of((t, self.seconds(t, part)) for t in self.points)
            for part in ("total", *PARTS)
        }

    @classmethod
    def read(cls, path: Path) -> Report:
        """Read a log; the last of several runs counts."""
        return cls([json.loads(line) for line in path.read_text("utf-8").splitlines()])

    def seconds(self, tokens: int, part: str) -> float:
        """CPU time of the prefill of the first `tokens` tokens, or of a part of it."""
        entry = next(e for e in self.cold if e["tokens"] == tokens)
        parts = {"dots": entry["dots_s"], "search": entry["search_s"], "total": entry["cpu_s"]}
        parts["rest"] = parts["total"] - parts["dots"] - parts["search"]
        return parts[part]

    def predicted(self, name: str) -> str:
        """What was noted before the measurement."""
        return next((str(e[name]) for e in self.by_kind["predicted"] if name in e), "-")

    def _nearest(self, length: int) -> int:
        return int(min(self.cold, key=lambda e: abs(e["tokens"] - length))["tokens"])


def arithmetic_of(start: Entry) -> int:
    """Bytes of the caches of a run by the model's memory arithmetic."""
    planned = start["planned"]
    num_slots = planned["kda states"] // STATE_BYTES + planned["saved states"] // SLOT_BYTES
    return cache_arithmetic(
        num_pages=start["num_pages"],
        page_size=PAGE_SIZE,
        num_slots=start["num_scratch"] + num_slots,
    )


def goals(report: Report, memory: Memory, life: Report) -> list[Goal]:
    """The requirements, with what was predicted and measured.

    Args:
        life: the run whose turns and tiers count.
    """
    found = []
    for entry in report.by_kind["search"]:
        short, long = (entry["ns_per_pool"][n] for n in ("8192", "262144"))
        found.append(
            Goal(
                f"search, cost per pool at 262,144 / 8,192, {entry['order']} scores",
                "<= 1.50",
                report.predicted("search_ratio"),
                f"{long / short:.2f} ({short:.1f} -> {long:.1f} ns)",
                long <= 1.5 * short,
            )
        )
    for entry in report.by_kind["select"]:
        short, long = (entry["ns_per_pool"][n] for n in ("8192", "262144"))
        what = "a decoded token" if entry["rows"] == 1 else f"{entry['rows']} rows of a chunk"
        found.append(
            Goal(
                f"scores and search, the same, {what}",
                "<= 1.50",
                report.predicted("select_ratio"),
                f"{long / short:.2f} ({short:.1f} -> {long:.1f} ns)",
                long <= 1.5 * short,
            )
        )
    for entry in report.by_kind["decode_step"]:
        short, long = (entry["cpu_ms"][n] for n in ("8192", "1048576"))
        found.append(
            Goal(
                "decode step at 1M / at 8k",
                "<= 1.50",
                report.predicted("decode_ratio"),
                f"{long / short:.2f} ({short:.1f} -> {long:.1f} ms)",
                long <= 1.5 * short,
            )
        )
    return [*found, *_prefill_goals(report, memory), *_life_goals(life)]


def _prefill_goals(report: Report, memory: Memory) -> list[Goal]:
    longest = report.points[-1]
    square = report.fits["total"].quadratic * longest**2
    explained = sum(report.fits[part].quadratic * longest**2 for part in ("dots", "search"))
    return [
        Goal(
            "bytes of the caches / the arithmetic",
            "within 2%",
            "1.000",
            f"{memory.held / memory.arithmetic:.4f} ({memory.held:,} B)",
            abs(memory.held / memory.arithmetic - 1) <= 0.02,
        ),
        Goal(
            "growth of `ru_maxrss` in a prefill / caches, index scores and ids",
            "within 2%",
            "1.00",
            f"{memory.peak / memory.planned:.4f} ({memory.peak:,} B)",
            abs(memory.peak / memory.planned - 1) <= 0.02,
        ),
        Goal(
            "quadratic time of scores and search / of all, at the longest prompt",
            "all of it",
            ">= 0.95",
            f"{explained / square:.2f} ({explained:,.0f} of {square:,.0f} s)",
            explained >= 0.95 * square,
        ),
    ]


def _life_goals(life: Report) -> list[Goal]:
    answers = {entry["name"]: entry for entry in life.by_kind["answer"]}
    turn, is_equal = answers["next_turn"], life.by_kind["equal"][-1]["logprobs_of_all_tiers"]
    prompt = f"a prompt of {life.start['tokens']:,}"
    return [
        Goal(
            f"second turn of {prompt}: tokens computed",
            "new + at most 63",
            "112",
            f"{turn['computed']} of {turn['computed'] + turn['cached']:,}",
            turn["computed"] <= 16 + 96 + 63,
        ),
        Goal(
            f"that turn of {prompt}, from host and from disk: tier, logprobs",
            "equal bits",
            "equal",
            f"{answers['host']['tier']}, {answers['disk']['tier']}; "
            + ("equal" if is_equal else "different"),
            answers["host"]["tier"] == "host" and answers["disk"]["tier"] == "disk" and is_equal,
        ),
    ]


def draw(report: Report) -> None:
    """Time over length: what was measured as dots, the fits as lines."""
    lines = [
        Line(
            name="all" if part == "total" else PART_NAMES[part],
            points=[(e["tokens"] / 1024, report.seconds(e["tokens"], part)) for e in report.cold],
            curve=lambda x, fit=fit: fit.at(x * 1024),
        )
        for part, fit in report.fits.items()
    ]
    PICTURE.write_text(
        line_chart(
            lines,
            title="Prefill of one prompt: CPU seconds over its length",
            x_name="tokens of the prompt, in 1,024",
            y_name="CPU seconds, one thread",
        ),
        encoding="utf-8",
    )


def time_table(report: Report) -> list[str]:
    """Seconds and shares at the four lengths."""
    total = report.fits["total"]
    lines = [
        "| tokens | CPU s | fit | " + " | ".join(PART_NAMES[p] for p in PARTS) + " |",
        "| ---: | ---: | ---: |" + " ---: |" * len(PARTS),
    ]
    for tokens in report.points:
        spent = report.seconds(tokens, "total")
        shares = [
            f"{report.seconds(tokens, p):,.1f} ({report.seconds(tokens, p) / spent:.0%})"
            for p in PARTS
        ]
        error = total.at(tokens) / spent - 1
        lines.append(
            f"| {tokens:,} | {spent:,.1f} | {total.at(tokens):,.1f} ({error:+.1%}) | "
            + " | ".join(shares)
            + " |"
        )
    lines += ["", "| part | a, us a token | b T^2 at the longest, s |", "| --- | ---: | ---: |"]
    longest = report.points[-1]
    for part, fit in report.fits.items():
        name = "all" if part == "total" else PART_NAMES[part]
        lines.append(f"| {name} | {fit.linear * 1e6:.1f} | {fit.quadratic * longest**2:,.1f} |")
    return lines


@dataclass(frozen=True)
class Memory:
    """What a prefill held above the loaded program, in bytes.

    Fields:
        planned: caches and index scores by the plan, and the prompt's ids where they are kept.
        peak: by which `ru_maxrss` grew. resident: own memory at the last look.
    """

    arithmetic: int
    held: int
    planned: int
    peak: int
    resident: int
    num_tokens: int

    @classmethod
    def of(cls, report: Report) -> Memory:
        """Read the first prefill of a log."""
        start, baseline = report.start, report.by_kind["baseline"][-1]["resident"]
        last = report.cold[-1]
        scores, ids = start["planned"]["index scores"], ID_BYTES * last["tokens"]
        return cls(
            arithmetic=arithmetic_of(start),
            held=start["cache_tensor_bytes"],
            planned=start["cache_tensor_bytes"] + scores + ids,
            peak=last["resident"]["peak"] - baseline["peak"],
            resident=last["resident"]["own"] - baseline["own"],
            num_tokens=last["tokens"],
        )


def tier_line(report: Report) -> str:
    """What went down and came back."""
    end = report.by_kind["end"][-1]
    written, loaded = end["bytes_written"], end["bytes_loaded"]
    payload = TOKEN_BYTES * report.start["tokens"]
    return (
        f"- Tiers: {written['host']:,} bytes written to host and {written['disk']:,} to disk, "
        f"{loaded['host']:,} and {loaded['disk']:,} loaded back; latents and keys of the prompt "
        f"of {report.start['tokens']:,} tokens are {payload:,} bytes."
    )


def section(report: Report, memory: Memory, life: Report, found: list[Goal]) -> str:
    """The text of the section."""
    date = report.start["at"][:10]
    state = [
        f"- **The long run had come to {report.cold[-1]['tokens']:,} tokens when this was "
        f"written**: the time is fitted up to {report.points[-1]:,}, turns and tiers are those of "
        "a run with a shorter prompt in the same window"
    ]
    if report.is_complete:
        state.clear()
    decodes = [e for e in report.by_kind.get("decode", []) if e["position"] > 1_000_000]
    lines = [
        f"- Machine: {cpu_name()}, one thread, shared with other work; torch "
        f"{report.start['torch']}",
        f"- Date: {date}",
        "- Command: `python tests/bench/long_context.py run`, `select`, `decode`, for the memory's "
        f"rows `run --tokens {memory.num_tokens}`, then `long_context_report.py`",
        "- Long prompt: `tests/support/long_prompt.py`: window 1,048,576, KDA, KDA, KDA, DSA, "
        "pools of 4 tokens, `index_topk` 256 (2,048 in the release), 2 attention heads to 1 index "
        f"head, float32, strict; a prompt of {report.start['tokens']:,} tokens in the real engine, "
        "prefix cache with device, host and disk",
        "- Selection: 512 pools of 4 tokens as released, 4 index heads of 16. Decode: the release "
        "divided by 8 in width, heads and experts, 9 KDA and 3 DSA layers, fast, batch 1",
        "- The lengths are read off the one run as its prefill passes them: a prompt's beginning "
        "costs what it costs alone",
        *state,
        "",
        "| goal | required | predicted | measured | |",
        "| --- | --- | --- | --- | --- |",
        *(
            f"| {g.name} | {g.required} | {g.predicted} | {g.measured} | "
            f"{'holds' if g.holds else 'does not hold'} |"
            for g in found
        ),
        "",
        "Prefill: time(T) = a T + b T^2, least squares of relative errors.",
        "",
        *time_table(report),
        "",
        "![CPU seconds of a prefill over its length: measured points lie on a parabola that the "
        "index scores make](long-context.svg)",
        "",
        f"- Predicted before: {report.predicted('cold_cpu_s')} CPU s for the whole prompt "
        f"({report.predicted('linear_s')} linear, {report.predicted('quadratic_s')} quadratic).",
        f"- Memory: the caches of the window hold {memory.held:,} bytes, as the arithmetic says. "
        f"With those planned for index scores and the ids of a prompt of {memory.num_tokens:,} "
        f"tokens it is {memory.planned:,}. Until the prefill's end `ru_maxrss` grew by "
        f"{memory.peak:,}, and {memory.resident:,} were resident then.",
        tier_line(life),
    ]
    if decodes:
        best = min(e["cpu_s"] for e in decodes) * 1e3
        lines.append(f"- A decode step behind the long prompt, strict: {best:.0f} ms at best.")
    return "\n".join(lines)


def main() -> None:
    """Read, draw, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--log", type=Path, default=Path("build/long_context.jsonl"))
    parser.add_argument("--memory-log", type=Path, help="another run's, for the memory's rows")
    options = parser.parse_args()
    report = Report.read(options.log)
    other = report if options.memory_log is None else Report.read(options.memory_log)
    memory, life = Memory.of(other), report if report.is_complete else other
    found = goals(report, memory, life)
    text = section(report, memory, life, found)
    print(text)
    draw(report)
    write_section(DOCS / "results.md", TITLE, text)
    missed = [goal.name for goal in found if not goal.holds]
    raise SystemExit(f"goals missed: {'; '.join(missed)}" if missed else 0)


if __name__ == "__main__":
    main()
