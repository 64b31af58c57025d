"""The tables of ``docs/results.md``, a file for each: a new result is a new row there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tools.results_rows import daemon, kernels, off, phases, proposers, simulated, unchanged
from tools.results_rows.row import table

__all__ = ["TABLES"]

TABLES: dict[str, Callable[[], str]] = {
    "unchanged": partial(table, unchanged.ROWS),
    "phases": phases.table,
    "daemon": partial(table, daemon.ROWS),
    "simulated": simulated.table,
    "off": partial(table, off.ROWS),
    "proposers": partial(table, proposers.ROWS),
    "kernels": partial(table, kernels.ROWS),
    "kernels by vocabulary": kernels.by_vocabulary,
    "kernels by rows": kernels.by_rows,
}
