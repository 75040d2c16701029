"""Draws a replay as SVG: how full the caches were, and how deep requests hit, over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trnrt_engine.simulate.replay import Occupancy, Replay

WIDTH, PANEL_HEIGHT, LEFT, RIGHT, TOP, GAP = 960, 200, 70, 170, 40, 60
MAX_COLUMNS = 480
MAX_DOTS = 3000
INK, FAINT = "#333333", "#cccccc"
TIER_COLOURS = {"device": "#4e79a7", "host": "#59a14f", "disk": "#b07aa1", "": "#e15759"}
COLOURS = {**TIER_COLOURS, "held": "#4e79a7", "cached": "#a0cbe8", "states": "#f28e2b"}


@dataclass(frozen=True, slots=True)
class Panel:
    """A rectangle with axes.

    Fields:
        top: its upper edge. most: value at the upper edge, 0 at the lower.
        last_s: time at the right edge, 0 at the left.
    """

    title: str
    top: float
    most: float
    last_s: float

    def x(self, time_s: float) -> float:
        """Return where a time lies."""
        return LEFT + (WIDTH - LEFT - RIGHT) * time_s / max(self.last_s, 1e-9)

    def y(self, value: float) -> float:
        """Return where a value lies."""
        return self.top + PANEL_HEIGHT * (1 - value / max(self.most, 1e-9))

    def frame(self, name_of: Callable[[float], str]) -> list[str]:
        """Draw title, grid and numbers."""
        lines = [_text(LEFT, self.top - 12, self.title, anchor="start", size=14)]
        for step in range(5):
            value = self.most * step / 4
            y = self.y(value)
            lines.append(_line(LEFT, y, WIDTH - RIGHT, y))
            lines.append(_text(LEFT - 8, y + 4, name_of(value), anchor="end"))
            time_s = self.last_s * step / 4
            below = self.top + PANEL_HEIGHT + 16
            lines.append(_text(self.x(time_s), below, _seconds(time_s), anchor="middle"))
        return lines


def draw(replay: Replay) -> str:
    """Return the picture of a replay that has run."""
    panels = [_device_panel, _lower_panel, _hit_panel]
    if not (replay.sizes.host_bytes or replay.sizes.disk_bytes):
        panels.remove(_lower_panel)
    height = TOP + len(panels) * (PANEL_HEIGHT + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts += panel(replay, TOP + number * (PANEL_HEIGHT + GAP))
    parts.append("</svg>\n")
    return "\n".join(parts)


def _device_panel(replay: Replay, top: float) -> list[str]:
    """Shares of the device's bytes: pages that are held, pages nobody holds, states."""
    sizes, samples = replay.sizes, _thinned(replay.timeline)
    whole = max(sizes.device_bytes, 1)
    held = [s.held_pages * sizes.page_bytes / whole for s in samples]
    cached = [s.cached_pages * sizes.page_bytes / whole for s in samples]
    states = [s.num_bundles * sizes.state_bytes / whole for s in samples]
    panel = Panel("device, share of its bytes (modelled time)", top, 1.0, replay.now_s)
    times = [s.time_s for s in samples]
    stacks = (
        ("held pages", "held", held),
        ("cached pages", "cached", cached),
        ("states", "states", states),
    )
    lines, base = panel.frame(_percent), [0.0] * len(samples)
    for place, (name, colour, values) in enumerate(stacks):
        upper = [low + value for low, value in zip(base, values, strict=True)]
        lines.append(_area(panel, times, base, upper, COLOURS[colour]))
        lines += _legend(panel, place, name, COLOURS[colour])
        base = upper
    pages = sizes.num_pages * sizes.page_bytes / whole
    note = f"pages: {pages:.0%} of it"
    return [*lines, _text(WIDTH - RIGHT + 12, panel.top + 84, note, anchor="start")]


def _lower_panel(replay: Replay, top: float) -> list[str]:
    """Shares of the budgets of the tiers below."""
    sizes, samples = replay.sizes, _thinned(replay.timeline)
    panel = Panel("tiers below, share of their budgets", top, 1.0, replay.now_s)
    lines, times = panel.frame(_percent), [s.time_s for s in samples]
    rows = (
        ("host", sizes.host_bytes, [s.host_bytes for s in samples]),
        ("disk", sizes.disk_bytes, [s.disk_bytes for s in samples]),
    )
    for place, (name, budget, used) in enumerate(row for row in rows if row[1]):
        points = " ".join(
            f"{panel.x(t):.1f},{panel.y(count / budget):.1f}"
            for t, count in zip(times, used, strict=True)
        )
        lines.append(
            f'<polyline points="{points}" fill="none" stroke="{COLOURS[name]}" stroke-width="2"/>'
        )
        lines += _legend(panel, place, name, COLOURS[name])
    return lines


def _hit_panel(replay: Replay, top: float) -> list[str]:
    """One dot a request: how deep it hit, and in grey how long its prompt was."""
    ran = [o for o in replay.outcomes.values() if o.match is not None]
    most = max((o.request.num_prompt_tokens for o in ran), default=1)
    panel = Panel("hit depth of each request, tokens (grey: prompt)", top, most, replay.now_s)
    lines = panel.frame(_tokens)
    for outcome in ran[:: -(-len(ran) // MAX_DOTS) or 1]:
        if outcome.match is None:
            continue
        x, low = panel.x(outcome.started_s), panel.y(outcome.match.state_depth)
        high = panel.y(outcome.request.num_prompt_tokens)
        lines.append(_line(x, low, x, high))
        colour = TIER_COLOURS.get(outcome.match.tier, INK)
        lines.append(f'<circle cx="{x:.1f}" cy="{low:.1f}" r="2" fill="{colour}"/>')
    for place, tier in enumerate(dict.fromkeys(o.match.tier for o in ran if o.match is not None)):
        lines += _legend(panel, place, tier or "no hit", TIER_COLOURS.get(tier, INK))
    return lines


def _thinned(timeline: Sequence[Occupancy]) -> Sequence[Occupancy]:
    return timeline[:: -(-len(timeline) // MAX_COLUMNS) or 1]


def _area(
    panel: Panel, times: Sequence[float], low: Sequence[float], high: Sequence[float], colour: str
) -> str:
    there = [f"{panel.x(t):.1f},{panel.y(v):.1f}" for t, v in zip(times, high, strict=True)]
    back = [f"{panel.x(t):.1f},{panel.y(v):.1f}" for t, v in zip(times, low, strict=True)]
    return f'<polygon points="{" ".join([*there, *reversed(back)])}" fill="{colour}"/>'


def _legend(panel: Panel, place: int, name: str, colour: str) -> list[str]:
    x, y = WIDTH - RIGHT + 12, panel.top + 20 * place
    box = f'<rect x="{x}" y="{y}" width="12" height="12" fill="{colour}"/>'
    return [box, _text(x + 18, y + 10, name, anchor="start")]


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{FAINT}"/>'


def _text(x: float, y: float, text: str, *, anchor: str, size: int = 11) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{INK}">{text}</text>'
    )


def _percent(value: float) -> str:
    return f"{value:.0%}"


def _tokens(value: float) -> str:
    return f"{value / 1000:.0f}k" if value >= 1000 else f"{value:.0f}"


def _seconds(value: float) -> str:
    return f"{value / 60:.0f} min" if value >= 120 else f"{value:.0f} s"
