"""Progress while a benchmark runs, and its tables at the end, by rich."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from specctl.bench.results import BenchResult, Run
from specctl.bench.words import HEADINGS, cells_of, outputs_words
from specctl.terminal import print_json

__all__ = ["TerminalProgress", "print_result"]

TITLE_CHARACTERS = 64
_SHORT = ("arm", "tokens/s", "against baseline", "TTFT ms", "TPOT ms", "E2E ms", "acceptance", "length")
_LEFT = ("arm", "against baseline")
_ANY_WIDTH = 1000


class TerminalProgress:
    """On a terminal a bar with live tokens/s; elsewhere a line for each run. Use as a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            # Each refresh takes milliseconds of the core that sends the load.
            refresh_per_second=1,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=None)

    def __enter__(self) -> TerminalProgress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def begin(self, runs: int) -> None:
        self._bar.update(self._task, total=runs)

    def live(self, title: str, tokens_per_s: float | None) -> None:
        speed = "" if tokens_per_s is None else f" [bold]{tokens_per_s:7.1f}[/] tokens/s"
        self._bar.update(self._task, description=f"{escape(title[:TITLE_CHARACTERS])}{speed}")

    def ended(self, run: Run) -> None:
        self._bar.advance(self._task)
        if not self._console.is_terminal:
            self._console.print(
                f"round {run.round + 1}, {escape(run.arm)}: {escape(run.load)}: {run.tokens_per_s:.1f} "
                f"tokens/s, {run.requests} requests, {run.failed} failed",
                highlight=False,
                soft_wrap=True,
            )


def print_result(result: BenchResult, console: Console, *, as_json: bool, said: Collection[str] = ()) -> None:
    """Latencies are p50 and p95 here; the saved files have p99 and more columns.

    With ``as_json`` the whole result also goes to standard output. ``said``: warnings that were printed.
    """
    for load in result.loads:
        _print_table(result, load.title, console)
    if len(result.loads) > 1:
        for found in result.comparisons:
            if found.load is None:
                console.print(f"all loads: {escape(found.arm)}: {escape(found.words)}", highlight=False)
    for line in outputs_words(result):
        console.print(escape(line), highlight=False, soft_wrap=True)
    for line in (one for one in result.warnings if one not in said):
        console.print(f"[yellow]warning:[/] {escape(line)}", highlight=False, soft_wrap=True)
    console.print(f"\n[bold]{escape(result.verdict)}[/]", highlight=False, soft_wrap=True)
    if as_json:
        print_json(result.model_dump(mode="json"))
    if result.search is not None:
        print_search(result.search, console)


def print_search(search: Mapping[str, Any], console: Console) -> None:
    """The launch line, the policy that keeps the setting, and what other workloads get or lose by it."""
    console.print("\nlaunch with:", style="bold")
    console.print(escape(search["launch"]), highlight=False, soft_wrap=True)
    console.print("\npolicy for specctl autotune:", style="bold")
    console.print(escape(search["policy"]), highlight=False, soft_wrap=True)
    if search["others_words"]:
        console.print("other workloads with this setting, against off:", style="bold")
    for line in search["others_words"]:
        console.print(escape(line), highlight=False, soft_wrap=True)


def _print_table(result: BenchResult, load: str, console: Console) -> None:
    """Where the terminal is narrow: medians only, and what an arm gains below the table."""
    table = _table(result, load)
    if console.measure(table, options=console.options.update(width=_ANY_WIDTH)).maximum <= console.width:
        console.print(table)
    else:
        console.print(_table(result, load, is_narrow=True))
        for found in result.comparisons:
            if found.load == load:
                console.print(f"{escape(found.arm)}: {escape(found.words)}", highlight=False)
    console.print()


def _table(result: BenchResult, load: str, *, is_narrow: bool = False) -> Table:
    table = Table(
        title=escape(load), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, show_edge=False
    )
    wanted = [
        i
        for i, name in enumerate(HEADINGS)
        if (name in _SHORT or (result.price_per_hour and name.startswith("cost")))
        and not (is_narrow and name == "against baseline")
    ]
    shares = 1 if is_narrow else 2
    for i in wanted:
        name = HEADINGS[i]
        words = name.replace(" ms", f" ms\n{' / '.join(('p50', 'p95')[:shares])}")
        table.add_column(words, justify="left" if name in _LEFT else "right", no_wrap=True)
    for one in result.figures:
        if one.load == load:
            cells = cells_of(one, result)
            table.add_row(*(escape(" / ".join(cells[i].split(" / ")[:shares])) for i in wanted))
    return table
