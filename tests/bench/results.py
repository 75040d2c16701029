"""docs/results.md: one section per benchmark, each replaced by its own script only."""

from __future__ import annotations

import datetime
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

RESULTS = Path(__file__).parents[2] / "docs" / "results.md"
HEADER = "# Results\n\nMeasured on CPU; every section names its machine, date and command.\n"


@dataclass(frozen=True, slots=True)
class Goal:
    """What was asked for, what was expected before the first run, and what came out.

    Fields:
        most, least: bounds of `value`; None = none.
        form: how numbers are written, for example `{:.2f} ms`.
    """

    name: str
    predicted: float
    value: float
    form: str
    most: float | None = None
    least: float | None = None

    @property
    def holds(self) -> bool:
        """The value lies within its bounds."""
        return (self.most is None or self.value <= self.most) and (
            self.least is None or self.value >= self.least
        )

    @property
    def row(self) -> str:
        """A row of the table of goals."""
        bounds = [("<=", self.most), (">=", self.least)]
        required = ", ".join(f"{sign} {self.form.format(b)}" for sign, b in bounds if b is not None)
        cells = [required, self.form.format(self.predicted), self.form.format(self.value)]
        return (
            f"| {self.name} | {' | '.join(cells)} | {'holds' if self.holds else 'does not hold'} |"
        )


def goal_table(goals: Sequence[Goal]) -> list[str]:
    """Lay goals out."""
    head = ["| goal | required | predicted | measured | |", "| --- | --- | --- | ---: | --- |"]
    return [*head, *(goal.row for goal in goals)]


def provenance(command: str) -> list[str]:
    """Say where, when and how a section was made."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    names = [line.partition(":")[2].strip() for line in info.splitlines() if "model name" in line]
    processor = names[0] if names else platform.processor()
    return [
        f"- Machine: {processor}, one thread, Python {platform.python_version()}",
        f"- Date: {datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
        f"- Command: `{command}`",
    ]


def conclude(
    path: Path, title: str, text: str, goals: Sequence[Goal], *, is_written: bool
) -> NoReturn:
    """Print a section, write it if it is to be, and exit; with the goals that were missed."""
    print(text)
    if is_written:
        write_section(path, title, text)
    missed = [goal.name for goal in goals if not goal.holds]
    raise SystemExit(f"goals missed: {'; '.join(missed)}" if missed else 0)


def write_section(path: Path, title: str, text: str) -> None:
    """Replace or append a section `## title`."""
    content = path.read_text("utf-8") if path.exists() else HEADER
    section = f"## {title}\n\n{text}\n"
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if pattern.search(content):
        content = pattern.sub(lambda _: section + "\n", content)
    else:
        content = f"{content.rstrip()}\n\n{section}"
    path.write_text(f"{content.rstrip()}\n", "utf-8")
