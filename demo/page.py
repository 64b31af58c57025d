"""The demo's page: the verdict, the speeds, what the daemon did. One file, no script; light and dark."""

from __future__ import annotations

import html
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from string import Template

from demo.arms import ArmRun
from demo.phases import PHASES
from demo.result import OURS, Result, Speed
from demo.watch import describe

__all__ = ["write_page"]

_TEMPLATE = Path(__file__).with_name("page.html")
WINDOW_S = 4.0
WIDTH, BARS_W, BAR_H, GAP, LABEL_W = 900, 460, 22, 8, 90
LINE_H = 150
STYLES = ("a", "b", "c", "d")
"""One a arm: fill and pattern differ, so that colour alone tells nothing apart."""


def write_page(path: Path, result: Result, about: str, warning: str) -> None:
    same, compared = result.outputs
    parts = {
        "about": html.escape(about),
        "warning": f'<p class="warning">{html.escape(warning)}.</p>' if warning else "",
        "verdict": html.escape(result.verdict),
        "outcome": "behind" if result.is_behind else "fine",
        "outputs": f"Outputs identical: {same} of {compared}.",
        "legend": _legend(result.arms),
        "speeds": "".join(
            f"<h3>{html.escape(phase.name)}</h3>{_bars(result.arms, speeds)}"
            for phase, speeds in zip(PHASES, result.by_phase, strict=True)
        ),
        "overall": _bars(result.arms, result.overall),
        "lines": _lines(result),
        "changes": _changes(result),
    }
    template = Template(_TEMPLATE.read_text(encoding="utf-8"))
    path.write_text(template.substitute(parts), encoding="utf-8")


def _style(arms: Sequence[str], arm: str) -> str:
    return STYLES[-1] if arm == OURS else STYLES[list(arms).index(arm) % (len(STYLES) - 1)]


def _legend(arms: Sequence[str]) -> str:
    entries = [
        f'<li><svg viewBox="0 0 28 16" class="key" aria-hidden="true">'
        f'<rect width="28" height="16" class="{_style(arms, arm)}"/></svg> {html.escape(arm)}</li>'
        for arm in arms
    ]
    return f"<ul class='legend'>{''.join(entries)}</ul>"


def _bars(arms: Sequence[str], speeds: dict[str, Speed]) -> str:
    """Medians as bars with the range over the rounds; the fastest is marked in words."""
    most = max(max(speed.values) for speed in speeds.values()) or 1.0
    best = max(arms, key=lambda arm: speeds[arm].median)
    room = BARS_W - LABEL_W - 185
    rows = []
    for i, arm in enumerate(arms):
        speed, y = speeds[arm], i * (BAR_H + GAP)
        length, low, high = (
            room * value / most for value in (speed.median, min(speed.values), max(speed.values))
        )
        middle = y + BAR_H / 2
        words = f"{speed.median:.1f} tokens/s{' (fastest)' if arm == best else ''}"
        rows.append(
            f'<text x="{LABEL_W - 10}" y="{middle + 5}" class="arm">{html.escape(arm)}</text>'
            f'<rect x="{LABEL_W}" y="{y}" width="{length:.1f}" height="{BAR_H}" class="{_style(arms, arm)}"/>'
            f'<path d="M{LABEL_W + low:.1f} {middle}H{LABEL_W + high:.1f}" class="range"/>'
            f'<text x="{LABEL_W + max(length, high) + 8:.1f}" y="{middle + 5}">{words}</text>'
        )
    height = len(arms) * (BAR_H + GAP)
    head = f'<svg viewBox="0 0 {BARS_W} {height}" role="img" aria-label="tokens per second">'
    return f"{head}{''.join(rows)}</svg>"


def _lines(result: Result) -> str:
    """The last round: tokens per second of every arm, and how much specctl let the server draft."""
    runs = {run.name: run for run in result.rounds[-1]}
    end_s = max(run.loads[-1].ended_s - run.started_s for run in runs.values())
    points = {arm: _speed(runs[arm]) for arm in result.arms}
    most = max((value for line in points.values() for _, value in line), default=1.0) or 1.0
    left, room = 44, WIDTH - 50

    def x(at_s: float) -> float:
        return left + room * at_s / end_s

    def speed_y(value: float) -> float:
        return 24 + LINE_H * (1.0 - value / most)

    parts = [_phases(runs[OURS], x, 24, 2 * LINE_H + 30), _axis(24, f"{most:.0f}"), _axis(54 + LINE_H, "8")]
    for arm, line in points.items():
        path = " ".join(f"{x(at_s):.1f},{speed_y(value):.1f}" for at_s, value in line)
        parts.append(f'<polyline points="{path}" class="line {_style(result.arms, arm)}"/>')
    steps = [(when_s - runs[OURS].started_s, value) for when_s, value in runs[OURS].watch.settings]
    drafted = _stairs([(at_s, value) for at_s, value in steps if 0 <= at_s <= end_s])
    path = " ".join(f"{x(at_s):.1f},{54 + LINE_H * (2 - value / 8.0):.1f}" for at_s, value in drafted)
    parts.append(f'<polyline points="{path}" class="line {STYLES[-1]}"/>')
    parts.append(f'<text x="{left}" y="{46 + LINE_H}" class="small">drafted tokens allowed by specctl</text>')
    parts.append(f'<text x="{left}" y="14" class="small">tokens/s, mean of {WINDOW_S:g} s</text>')
    height = 2 * LINE_H + 80
    label = "tokens per second over time, and the drafted tokens that specctl allows"
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _phases(run: ArmRun, x, top: float, height: float) -> str:  # type: ignore[no-untyped-def]
    parts = []
    for i, (phase, load) in enumerate(zip(PHASES, run.loads, strict=True)):
        start, end = x(load.started_s - run.started_s), x(load.ended_s - run.started_s)
        shade, words = "even" if i % 2 else "odd", html.escape(phase.name)
        parts.append(
            f'<rect x="{start:.1f}" y="{top}" width="{end - start:.1f}" height="{height}" class="{shade}"/>'
            f'<text x="{(start + end) / 2:.1f}" y="{top + height + 16}" class="middle small">{words}</text>'
        )
    return "".join(parts)


def _axis(top: float, most: str) -> str:
    return (
        f'<path d="M44 {top}V{top + LINE_H}H{WIDTH - 6}" class="axis"/>'
        f'<text x="38" y="{top + 10}" class="arm small">{most}</text>'
        f'<text x="38" y="{top + LINE_H}" class="arm small">0</text>'
    )


def _stairs(points: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
    stairs: list[tuple[float, int]] = []
    for at_s, value in points:
        if stairs and stairs[-1][1] != value:
            stairs.append((at_s, stairs[-1][1]))
        stairs.append((at_s, value))
    return stairs


def _speed(run: ArmRun) -> list[tuple[float, float]]:
    """Tokens per second over the WINDOW_S seconds before each point; phases are not mixed."""
    points = []
    for load in run.loads:
        stamps = [when_s for when_s, _ in load.arrivals]
        totals = [0]
        for _, tokens in load.arrivals:
            totals.append(totals[-1] + tokens)
        at_s = load.started_s + 1.0
        while at_s <= load.ended_s:
            from_s = max(at_s - WINDOW_S, load.started_s)
            count = totals[bisect_right(stamps, at_s)] - totals[bisect_right(stamps, from_s)]
            points.append((at_s - run.started_s, count / (at_s - from_s)))
            at_s += 0.5
    return points


def _changes(result: Result) -> str:
    run = next(run for run in result.rounds[-1] if run.name == OURS)
    return "".join(
        f"<tr><td>{max(when_s - run.started_s, 0.0):.0f} s</td><td>{html.escape(describe(table))}</td>"
        f"<td>{html.escape(table.reason)}</td></tr>"
        for when_s, table in run.watch.tables
    )
