"""Figures of a view as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.style import Style
from rich.text import Text

from specctl.watch.views import Mode, Point, TargetDetail, TargetView

__all__ = [
    "COLUMNS",
    "UNKNOWN",
    "acceptance",
    "cells",
    "chart",
    "facts",
    "fitting",
    "line",
    "number",
    "setting",
    "state",
    "widths",
]

UNKNOWN = "-"
WIDTH_MAX = 48
GAP = "  "
COLUMNS = (
    "server",
    "state",
    "model",
    "method",
    "run",
    "wait",
    "setting",
    "tok/s",
    "if off",
    "speedup",
    "accepted",
    "why",
)
_NUMBERS = ("run", "wait", "tok/s", "if off", "speedup", "accepted")
_BLOCKS = " ▁▂▃▄▅▆▇█"
_BY_HAND = {
    Mode.FREEZE: "frozen",
    Mode.OFF: "off by hand",
    Mode.DRY_RUN: "dry run",
    Mode.TABLE: "table by hand",
}


def number(value: float | None, digits: int | None = None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value:,.{(1 if abs(value) < 10 else 0) if digits is None else digits}f}"


def percent(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"


def setting(words: str | None) -> str:
    """Several numbers in short: ``8 tokens, probability >= 0.2`` -> ``8, p>=0.2``."""
    if words is None:
        return UNKNOWN
    return words.replace(" tokens,", ",").replace(" token,", ",").replace("probability >= ", "p>=")


def state(view: TargetView) -> Text:
    if view.is_up is None:
        return Text("not polled yet", "dim")
    if not view.is_up:
        return Text("unreachable", "bold red")
    if view.mode in _BY_HAND:
        return Text(_BY_HAND[view.mode], "yellow")
    if view.is_frozen:
        return Text("frozen", "yellow")
    if view.table_state == "fallback":
        return Text("fallback", "yellow")
    return Text("steered", "green") if view.lease_held else Text("watched", "dim")


def cells(view: TargetView) -> list[str]:
    """A line of the list, in the order of ``COLUMNS``."""
    now, off = view.decode_tokens_per_s, view.off_tokens_per_s
    why = view.why_down if view.is_up is False else (view.reason or "").replace("_", " ")
    return [
        view.instance,
        state(view).plain,
        view.model or UNKNOWN,
        view.method or UNKNOWN,
        number(view.running, 0),
        number(view.waiting, 0),
        setting(view.setting),
        number(now),
        number(off),
        UNKNOWN if now is None or not off else f"{now / off:.2f}x",
        percent(view.acceptance_rate),
        why or UNKNOWN,
    ]


def widths(rows: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """Of every column, its name included."""
    return tuple(
        min(max([len(name), *(len(row[i]) for row in rows)]), WIDTH_MAX) for i, name in enumerate(COLUMNS)
    )


def fitting(wide: Sequence[int], room: int) -> tuple[int, ...]:
    """0 for the columns that are left out where all do not fit. The end of the reason is given up last but
    figures."""
    kept = list(wide)
    for name, cut in (("model", 0), ("method", 0), ("if off", wide[-1]), ("wait", wide[-1])):
        if sum(kept) + len(GAP) * (sum(map(bool, kept)) - 1) - cut > room:
            kept[COLUMNS.index(name)] = 0
    return tuple(kept)


def line(cells: Sequence[str], wide: Sequence[int], style: str | Style = "") -> Text:
    """One text for a row: a terminal draws it in a tenth of the time that cells take. Columns of width 0 are
    left out. ``style``: of the state."""
    parts = [
        cell[:width].rjust(width) if name in _NUMBERS else cell[:width].ljust(width)
        for name, cell, width in zip(COLUMNS, cells, wide, strict=True)
        if width
    ]
    text = Text(GAP.join(parts), no_wrap=True)
    text.stylize(style, wide[0] + len(GAP), wide[0] + len(GAP) + wide[1])
    return text


def facts(view: TargetDetail, now_s: float) -> Text:
    """Two columns of what a server does now."""
    lease = view.table_state or UNKNOWN
    if view.lease_ends_s is not None:
        whose = "held" if view.lease_held else f"held by {view.table_owner}"
        lease = f"{whose}, {max(view.lease_ends_s - now_s, 0.0):.0f} s left"
    waiting = f"{number(view.waiting, 0)} waiting, KV cache {percent(view.kv_cache_used_ratio)}"
    length = "" if view.acceptance_length is None else f", {view.acceptance_length:.2f} tokens a step"
    over = UNKNOWN if view.speedup_vs_off is None else f"{view.speedup_vs_off:.2f}x over about 10 min"
    lines = (
        ("load", f"{number(view.running, 0)} running, {waiting}"),
        ("setting", view.setting or UNKNOWN),
        (
            "tokens/s",
            f"{number(view.decode_tokens_per_s)} of step time, {number(view.off_tokens_per_s)} if off",
        ),
        ("speedup", over),
        ("accepted", f"{percent(view.acceptance_rate)}{length}"),
        ("efficiency", f"{percent(view.efficiency)} emitted / verified"),
        ("emitted", f"{number(view.emitted_tokens_per_s)} tokens/s of the clock"),
        ("table", f"version {number(view.table_version, 0)} by {view.table_owner or UNKNOWN}"),
        ("lease", lease),
        ("fallback", view.fallback or UNKNOWN),
    )
    return Text("\n").join(Text.assemble((f"{name:<11}", "dim"), words) for name, words in lines)


def chart(history: Sequence[Point], width: int) -> Text:
    """Tokens per second of step time, measured and predicted with speculation off, on one scale."""
    points = history[-max(width, 1) :]
    rows = [[point.decode_tokens_per_s for point in points], [point.off_tokens_per_s for point in points]]
    top = max((value for row in rows for value in row if value is not None), default=0.0)
    lines = [Text.assemble(("0 to ", "dim"), number(top), (" tokens/s of step time", "dim"))]
    for name, row, style in zip(("now", "if off"), rows, ("cyan", "yellow"), strict=True):
        lines.append(
            Text.assemble((f"{name:<7}", "dim"), ("".join(_block(value, top) for value in row), style))
        )
    drafts = [point.num_speculative_tokens for point in points]
    most = max((value for value in drafts if value is not None), default=0)
    words = "".join(_block(value, float(most)) for value in drafts)
    lines.append(Text.assemble((f"{'drafts':<7}", "dim"), (words, "green"), (f" 0 to {most}", "dim")))
    return Text("\n").join(lines)


def acceptance(survival_at: Sequence[float] | None) -> Text:
    if not survival_at:
        return Text("nothing was drafted", "dim")
    lines = [
        Text.assemble((f"{j:>2} ", "dim"), ("█" * round(20 * share), "cyan"), f" {share:.0%}")
        for j, share in enumerate(survival_at[:16], start=1)
    ]
    return Text("\n").join(lines)


def _block(value: float | None, top: float) -> str:
    if value is None:
        return " "
    return _BLOCKS[max(round(8 * value / top), 1)] if top > 0 else _BLOCKS[1]
