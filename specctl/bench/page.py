"""The HTML page: verdict and speed first. One file without script; light and dark."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from importlib.resources import files
from string import Template

from specctl.bench.arms import ArmKind
from specctl.bench.charts import bars, intervals, key, lines
from specctl.bench.intervals import Outcome
from specctl.bench.results import ArmFigures, BenchResult
from specctl.bench.words import HEADINGS, cells_of, outputs_words, ran_words

__all__ = ["page"]

TIMELINE_MAX = 6
CHANGES_MAX = 40


def page(result: BenchResult) -> str:
    ours = next((arm.name for arm in result.arms if arm.kind is ArmKind.AUTOTUNE), None)
    styles = _styles([arm.name for arm in result.arms], ours)
    parts = {
        "title": html.escape(f"specctl bench: {', '.join(str(one['name']) for one in result.servers)}"),
        "verdict": html.escape(result.verdict),
        "outcome": _outcome(result, ours),
        "outputs": "".join(f"<p>{html.escape(line)}</p>" for line in outputs_words(result)),
        "warnings": "".join(f'<p class="warning">{html.escape(line)}</p>' for line in result.warnings),
        "baseline": html.escape(result.baseline),
        "speeds": "".join(
            _card(load.title, bars(_of_load(result, load.title), ours, f"tokens per second, {load.title}"))
            for load in result.loads
        ),
        "intervals": _intervals(result),
        "tables": "".join(_table(result, load.title) for load in result.loads),
        "survival": _survival(result, styles),
        "timeline": _timeline(result, styles),
        "changes": _changes(result),
        "search": _search(result),
        "about": "".join(f"<p>{html.escape(line)}</p>" for line in ran_words(result)),
    }
    template = (files("specctl.bench") / "page.html").read_text(encoding="utf-8")
    return Template(template).substitute(parts)


def _styles(arms: Sequence[str], ours: str | None) -> dict[str, int]:
    """The solid line, 3, is the daemon's where there is one."""
    others = [0, 1, 2, 4, 5] if ours is not None else [3, 0, 1, 2, 4, 5]
    rest = [arm for arm in arms if arm != ours]
    return {arm: others[i % len(others)] for i, arm in enumerate(rest)} | ({} if ours is None else {ours: 3})


def _outcome(result: BenchResult, ours: str | None) -> str:
    found = [one for one in result.comparisons if one.load is None and ours in (None, one.arm)]
    outcomes = {one.outcome for one in found}
    if result.against_best_constant is not None:
        outcomes.add(result.against_best_constant.outcome)
    if ours is not None and Outcome.SLOWER in outcomes:
        return "bad"
    return "good" if Outcome.FASTER in outcomes else ""


def _of_load(result: BenchResult, load: str) -> list[ArmFigures]:
    return [one for one in result.figures if one.load == load]


def _card(title: str, body: str) -> str:
    return f'<div class="card"><h3>{html.escape(title)}</h3>{body}</div>'


def _intervals(result: BenchResult) -> str:
    cards = []
    loads: list[str | None] = [None] if len(result.loads) > 1 else []
    for load in [*loads, *(load.title for load in result.loads)]:
        found = [one for one in result.comparisons if one.load == load]
        title = "all loads (geometric mean)" if load is None else load
        cards.append(_card(title, intervals(found, f"ratio to {result.baseline}, {title}")))
    return "".join(cards)


def _table(result: BenchResult, load: str) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in HEADINGS)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells_of(one, result)) + "</tr>"
        for one in _of_load(result, load)
    )
    return (
        f"<h3>{html.escape(load)}</h3>"
        f'<div class="wide" tabindex="0"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _survival(result: BenchResult, styles: Mapping[str, int]) -> str:
    """Of every load in which some arm drafted."""
    cards, shown = [], set()
    for load in result.loads:
        series = {
            one.arm: [(k + 1.0, share) for k, share in enumerate(one.acceptance.survival_at)]
            for one in _of_load(result, load.title)
            if one.acceptance is not None and one.acceptance.survival_at
        }
        if series:
            shown |= set(series)
            chart = lines(series, styles, x_title="position", y_title="share of drafts", y_max=1.0)
            cards.append(_card(load.title, chart))
    if not cards:
        return ""
    names = [arm.name for arm in result.arms if arm.name in shown]
    note = "<p>Share of drafts whose tokens were all accepted up to a position.</p>"
    return f'<h2>Survival by position</h2>{key(names, styles)}<div class="cards">{"".join(cards)}</div>{note}'


def _timeline(result: BenchResult, styles: Mapping[str, int]) -> str:
    """The last round, second by second."""
    last, cards = max(run.round for run in result.runs), []
    arms = [arm.name for arm in result.arms][-TIMELINE_MAX:]
    for load in result.loads:
        series = {
            run.arm: [(i + 0.5, value) for i, value in enumerate(run.timeline)]
            for run in result.runs
            if run.round == last and run.load == load.title and run.arm in arms and len(run.timeline) > 1
        }
        if series:
            cards.append(_card(load.title, lines(series, styles, x_title="seconds", y_title="tokens/s")))
    if not cards:
        return ""
    return f'<h2>Over time (last round)</h2>{key(arms, styles)}<div class="cards">{"".join(cards)}</div>'


def _changes(result: BenchResult) -> str:
    if not result.tables:
        return ""
    last = max(one.round for one in result.tables)
    seen = [one for one in result.tables if one.round == last][:CHANGES_MAX]
    rows = "".join(
        f"<tr><td>{one.at_s:.1f} s</td><td>{html.escape(one.table)}</td>"
        f"<td>{html.escape(one.reason)}</td></tr>"
        for one in seen
    )
    return (
        "<h2>What autotune put in force (last round)</h2>"
        "<p>Most drafted tokens, by the number of requests that decode at the same time.</p>"
        '<div class="wide" tabindex="0"><table class="text">'
        "<thead><tr><th>at</th><th>table</th><th>why</th></tr>"
        f"</thead><tbody>{rows}</tbody></table></div>"
    )


def _search(result: BenchResult) -> str:
    if result.search is None:
        return ""
    escaped = {name: html.escape(result.search[name]) for name in ("launch", "policy")}
    lines = "".join(f"<li>{html.escape(line)}</li>" for line in result.search["others_words"])
    return (
        f"<h2>Launch with</h2><p><code>{escaped['launch']}</code></p>"
        f"<h2>Policy that keeps it</h2><pre class='wide' tabindex='0'>{escaped['policy']}</pre>"
        f"<h2>Other workloads with this setting, against off</h2><ul>{lines}</ul>"
    )
