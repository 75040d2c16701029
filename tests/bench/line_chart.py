"""A line chart as SVG: measured points and a curve for each line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 800, 480
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 50, 60
COLOURS = ("#37474f", "#c62828", "#ef6c00", "#1565c0", "#2e7d32")
CURVE_STEPS = 100


@dataclass(frozen=True)
class Line:
    """One quantity: points that were measured, a curve that was fitted."""

    name: str
    points: Sequence[tuple[float, float]]
    curve: Callable[[float], float]


def line_chart(lines: Sequence[Line], *, title: str, x_name: str, y_name: str) -> str:
    """Draw the lines over axes that begin at zero."""
    x_step, x_end = _axis(max(x for line in lines for x, _ in line.points))
    y_step, y_end = _axis(max(y for line in lines for _, y in line.points))

    def at(x: float, y: float) -> tuple[float, float]:
        across, up = (WIDTH - LEFT - RIGHT) * x / x_end, (HEIGHT - TOP - BOTTOM) * y / y_end
        return LEFT + across, HEIGHT - BOTTOM - up

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="DejaVu Sans, Helvetica, Arial, sans-serif" font-size="13" role="img" '
        f'aria-label="{escape(title)}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(WIDTH / 2, 24, title, anchor="middle", size=16),
        _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, x_name, anchor="middle"),
        f'<text transform="translate(18 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y_name)}</text>",
    ]
    for x in _ticks(x_step, x_end):
        parts += [_rule(at(x, 0), at(x, y_end)), _text(at(x, 0)[0], HEIGHT - 40, f"{x:,.0f}")]
    for y in _ticks(y_step, y_end):
        left, height = at(0, y)
        parts += [_rule((left, height), at(x_end, y))]
        parts += [_text(left - 8, height + 4, f"{y:,.0f}", anchor="end")]
    for index, line in enumerate(lines):
        colour = COLOURS[index % len(COLOURS)]
        last = max(x for x, _ in line.points)
        curve = [at(x, line.curve(x)) for x in (last * i / CURVE_STEPS for i in range(101))]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in curve)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        )
        for x, y in (at(*point) for point in line.points):
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>')
        parts.append(
            f'<circle cx="{LEFT + 24}" cy="{TOP + 18 + 20 * index}" r="5" fill="{colour}"/>'
        )
        parts.append(_text(LEFT + 36, TOP + 22 + 20 * index, line.name, anchor="start"))
    return "\n".join([*parts, "</svg>", ""])


def _axis(largest: float) -> tuple[float, float]:
    """Distance of ticks, and the end of an axis that holds a value."""
    rough = largest / 6
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    return step, step * math.ceil(largest / step)


def _ticks(step: float, end: float) -> list[float]:
    return [step * i for i in range(round(end / step) + 1)]


def _rule(start: tuple[float, float], end: tuple[float, float]) -> str:
    return (
        f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
        f'stroke="#cfd8dc"/>'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 13) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(text)}</text>"
    )
