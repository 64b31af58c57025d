"""Charts of the page as inline SVG. Arms differ by dash and marker as well as by colour."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence

from specctl.bench.intervals import Outcome
from specctl.bench.results import ArmFigures, Comparison

__all__ = ["STYLES", "WIDTH", "bars", "intervals", "key", "lines"]

WIDTH = 360
"""Of the view box: about the width of a narrow screen, so that 14 px text stays readable there."""
LABEL_W, ROW_H, BAR_H = 96, 30, 20
STYLES = 6
"""Line styles in the page's style sheet: s0 to s5."""
PLOT_H, PLOT_LEFT = 170, 44
LABEL_CHARACTERS = 13
TICK_W = 44


def bars(figures: Sequence[ArmFigures], highlighted: str | None, caption: str) -> str:
    """Median tokens/s as bars, the range of the rounds as a line; the fastest is marked in words."""
    most = max((one.tokens_per_s_max for one in figures), default=0.0) or 1.0
    best = max(figures, key=lambda one: one.tokens_per_s).arm
    room, rows = WIDTH - LABEL_W - 112, []
    for i, one in enumerate(figures):
        y = i * ROW_H + (ROW_H - BAR_H) / 2
        values = (one.tokens_per_s, one.tokens_per_s_min, one.tokens_per_s_max)
        length, low, high = (room * value / most for value in values)
        middle = y + BAR_H / 2
        words = f"{_number(one.tokens_per_s)}{' (fastest)' if one.arm == best else ''}"
        kind = "ours" if one.arm == highlighted else "bar"
        rows.append(
            f'<text x="{LABEL_W - 8}" y="{middle + 5}" class="end">{_short(one.arm)}</text>'
            f'<rect x="{LABEL_W}" y="{y}" width="{length:.1f}" height="{BAR_H}" class="{kind}"/>'
            f'<path d="M{LABEL_W + low:.1f} {middle}H{LABEL_W + high:.1f}" class="range"/>'
            f'<text x="{LABEL_W + max(length, high) + 8:.1f}" y="{middle + 5}">{words}</text>'
        )
    return _svg(len(figures) * ROW_H, caption, "".join(rows))


def intervals(found: Sequence[Comparison], caption: str) -> str:
    """Ratio to the baseline with its interval, on a logarithmic scale; 1 is the baseline."""
    edges = [value for one in found for value in (one.low, one.high, one.ratio) if value is not None]
    low, high = min([*edges, 0.95]) * 0.98, max([*edges, 1.05]) * 1.02
    room, words_w = WIDTH - LABEL_W - 20, 20

    def x(ratio: float) -> float:
        return LABEL_W + room * (math.log(ratio) - math.log(low)) / (math.log(high) - math.log(low))

    height = len(found) * (ROW_H + words_w) + 26
    parts = [f'<path d="M{x(1.0):.1f} 0V{height - 22}" class="one"/>']
    parts += [
        f'<text x="{x(tick):.1f}" y="{height - 5}" class="middle small">x {tick:g}</text>'
        for tick in _ticks(low, high, x)
    ]
    for i, one in enumerate(found):
        y = i * (ROW_H + words_w) + ROW_H / 2
        kind = {Outcome.FASTER: "faster", Outcome.SLOWER: "slower"}.get(one.outcome, "level")
        parts.append(f'<text x="{LABEL_W - 8}" y="{y + 5}" class="end">{_short(one.arm)}</text>')
        if one.low is not None and one.high is not None:
            parts.append(
                f'<path d="M{x(one.low):.1f} {y}H{x(one.high):.1f}M{x(one.low):.1f} {y - 5}v10'
                f'M{x(one.high):.1f} {y - 5}v10" class="interval"/>'
            )
        parts.append(f'<circle cx="{x(one.ratio):.1f}" cy="{y}" r="5" class="{kind}"/>')
        parts.append(f'<text x="{LABEL_W}" y="{y + 23}" class="small">{html.escape(one.words)}</text>')
    return _svg(height, caption, "".join(parts))


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    styles: Mapping[str, int],
    *,
    x_title: str,
    y_title: str,
    y_max: float | None = None,
) -> str:
    """One line each. Every line ends in a marker of its own shape."""
    points = [point for line in series.values() for point in line]
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    top = y_max or max(y for _, y in points) or 1.0
    room = WIDTH - PLOT_LEFT - 14

    def at(x: float, y: float) -> tuple[float, float]:
        share = (x - x_low) / (x_high - x_low) if x_high > x_low else 0.5
        return PLOT_LEFT + room * share, 22 + PLOT_H * (1.0 - min(y / top, 1.0))

    bottom = 22 + PLOT_H
    parts = [f'<text x="4" y="14" class="small">{html.escape(y_title)}</text>']
    for share in (0.0, 0.5, 1.0):
        y = bottom - PLOT_H * share
        parts.append(f'<path d="M{PLOT_LEFT} {y}H{WIDTH - 14}" class="grid"/>')
        parts.append(f'<text x="{PLOT_LEFT - 6}" y="{y + 5}" class="end small">{_number(top * share)}</text>')
    for name, line in series.items():
        style = styles[name] % STYLES
        placed = [at(x, y) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline points="{path}" class="line s{style}"/>')
        parts += [_marker(style, *point) for point in (placed if len(placed) <= 20 else placed[-1:])]
    words = f"{_number(x_low)} to {_number(x_high)}"
    parts.append(
        f'<text x="{WIDTH - 14}" y="{bottom + 18}" class="end small">{html.escape(x_title)}, {words}</text>'
    )
    return _svg(bottom + 24, f"{y_title} over {x_title}", "".join(parts))


def key(names: Sequence[str], styles: Mapping[str, int]) -> str:
    """The legend of ``lines``."""
    entries = [
        f'<li><svg viewBox="0 0 44 16" class="key" aria-hidden="true"><path d="M2 8H42" class="line '
        f's{styles[name] % STYLES}"/>{_marker(styles[name] % STYLES, 22, 8)}</svg> {html.escape(name)}</li>'
        for name in names
    ]
    return f'<ul class="legend">{"".join(entries)}</ul>'


def _marker(style: int, x: float, y: float) -> str:
    kind = f'class="mark s{style}"'
    if style % 3 == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" {kind}/>'
    if style % 3 == 1:
        return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" {kind}/>'
    return f'<path d="M{x:.1f} {y - 5:.1f}l5 9h-10z" {kind}/>'


def _ticks(low: float, high: float, place: Callable[[float], float]) -> list[float]:
    """1 first, then those with room beside the ones before."""
    chosen: list[float] = []
    for tick in (1.0, 2.0, 0.5, 4.0, 0.25, 1.5, 0.8, 1.2, 0.9, 1.1, 0.7, 3.0, 6.0):
        has_room = all(abs(place(tick) - place(other)) >= TICK_W for other in chosen)
        if low <= tick <= high and has_room:
            chosen.append(tick)
    return chosen


def _number(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def _short(name: str) -> str:
    text = name if len(name) <= LABEL_CHARACTERS else f"{name[: LABEL_CHARACTERS - 1]}…"
    return html.escape(text)


def _svg(height: float, label: str, body: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:g}" role="img" aria-label="{html.escape(label)}">{body}</svg>'
