"""The demo's table, and its page with a chart."""

from __future__ import annotations

import html
import io
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from demo.arms import Arm
from demo.watch import describe

__all__ = ["table_rows", "text_table", "write_page"]

COLUMNS = ("phase", "off tok/s", "fixed tok/s", "specctl tok/s", "drafted by specctl", "accepted")
COLOURS = {"off": "#9aa0a6", "fixed": "#e8a33d", "specctl": "#1a73e8"}
WINDOW_S = 3.0
_SHADES = ("#f1f3f4", "#ffffff")


def table_rows(arms: Sequence[Arm]) -> list[tuple[str, ...]]:
    rows = []
    last = arms[-1]
    for i, result in enumerate(last.results):
        rate = result.acceptance_rate
        speeds = [f"{arm.results[i].load.tokens_per_s:.1f}" for arm in arms]
        share = "-" if rate is None else f"{rate:.0%}"
        rows.append((result.phase.name, *speeds, str(result.drafted_tokens), share))
    total = [sum(r.load.tokens for r in arm.results) for arm in arms]
    seconds = [sum(r.load.ended_s - r.load.started_s for r in arm.results) for arm in arms]
    speeds = [f"{tokens / s:.1f}" for tokens, s in zip(total, seconds, strict=True)]
    drafted = sum(r.drafted_tokens for r in last.results)
    accepted = sum(r.accepted_tokens for r in last.results)
    rows.append(("all", *speeds, str(drafted), f"{accepted / drafted:.0%}" if drafted else "-"))
    return rows


def text_table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in (COLUMNS, *rows)) for i in range(len(COLUMNS))]
    lines = [COLUMNS, tuple("-" * width for width in widths), *rows]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) for line in lines)


def write_page(path: Path, arms: Sequence[Arm], about: str) -> None:
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
        for row in table_rows(arms)
    )
    head = "".join(f"<th>{column}</th>" for column in COLUMNS)
    last = arms[-1]
    changes = "".join(
        f"<tr><td>{when_s - last.started_s:.1f} s</td><td>{html.escape(describe(table))}</td>"
        f"<td>{html.escape(table.reason)}</td></tr>"
        for when_s, table in last.watch.tables
    )
    path.write_text(
        _PAGE.format(about=html.escape(about), chart=_chart(arms), head=head, rows=rows, changes=changes),
        encoding="utf-8",
    )


def _chart(arms: Sequence[Arm]) -> str:
    figure, (load, setting, speed) = plt.subplots(
        3, 1, figsize=(11, 8), sharex=True, height_ratios=(1, 1.3, 2), layout="constrained"
    )
    last = arms[-1]
    for axes in (load, setting, speed):
        _shade_phases(axes, last)
        axes.spines[["top", "right"]].set_visible(False)
    _steps(load, last.watch.decoding, last.started_s, "#5f6368")
    load.set_ylabel("requests\ndecoding")
    load.set_ylim(0, 9)
    for result in last.results:
        middle = (result.load.started_s + result.load.ended_s) / 2 - last.started_s
        load.text(middle, 9.3, result.phase.name, ha="center", va="bottom", fontsize=10)
    _steps(setting, last.watch.num_speculative_tokens, last.started_s, COLOURS["specctl"])
    setting.set_ylabel("tokens drafted\nat most (specctl)")
    setting.set_ylim(-0.3, 8.6)
    for arm in arms:
        times, speeds = _speed(arm)
        width = 2.2 if arm is last else 1.5
        speed.plot(times, speeds, color=COLOURS.get(arm.name), linewidth=width, label=arm.name)
    speed.set_ylim(0, 1.15 * speed.get_ylim()[1])
    speed.set_ylabel(f"tokens/s\n(mean of {WINDOW_S:g} s)")
    speed.set_xlabel("seconds since the start of the arm")
    speed.legend(loc="upper right", frameon=False, ncols=3)
    text = io.StringIO()
    figure.savefig(text, format="svg")
    plt.close(figure)
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _shade_phases(axes: Axes, arm: Arm) -> None:
    for i, result in enumerate(arm.results):
        start = result.load.started_s - arm.started_s
        axes.axvspan(start, result.load.ended_s - arm.started_s, color=_SHADES[i % 2], zorder=0)


def _steps(axes: Axes, points: Sequence[tuple[float, int]], started_s: float, colour: str) -> None:
    times = [when_s - started_s for when_s, _ in points]
    axes.step(times, [value for _, value in points], where="post", color=colour, linewidth=1.8)
    axes.set_xlim(0, max(times))


def _speed(arm: Arm) -> tuple[list[float], list[float]]:
    """Tokens per second over the WINDOW_S seconds before each point; phases are not mixed."""
    times: list[float] = []
    speeds: list[float] = []
    for result in arm.results:
        load = result.load
        stamps = [when_s for when_s, _ in load.arrivals]
        totals = [0]
        for _, tokens in load.arrivals:
            totals.append(totals[-1] + tokens)
        at_s = load.started_s + 1.0
        while at_s <= load.ended_s:
            from_s = max(at_s - WINDOW_S, load.started_s)
            count = totals[bisect_right(stamps, at_s)] - totals[bisect_right(stamps, from_s)]
            times.append(at_s - arm.started_s)
            speeds.append(count / (at_s - from_s))
            at_s += 0.5
    return times, speeds


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>specctl demo</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #202124; }}
body {{ max-width: 1100px; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ margin-bottom: 0; }}
p {{ max-width: 75ch; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
th, td {{ text-align: left; padding: .35rem .9rem .35rem 0; }}
th, td {{ border-bottom: 1px solid #dadce0; vertical-align: top; }}
.changes td {{ font-size: 14px; }}
svg {{ width: 100%; height: auto; }}
</style>
</head>
<body>
<h1>specctl demo</h1>
<p>{about}</p>
{chart}
<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>
<h2>Tables that the running server obeyed (specctl)</h2>
<p>Drafted tokens at most, by number of requests decoding; 0 is off.</p>
<table class="changes">
<thead><tr><th>at</th><th>table</th><th>why</th></tr></thead>
<tbody>{changes}</tbody>
</table>
</body>
</html>
"""
