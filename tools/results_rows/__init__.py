"""The rows of ``docs/results.md``, a file for each of its tables: a new result is a new row there."""

from __future__ import annotations

from tools.results_rows import daemon, kernels, off, proposers, unchanged
from tools.results_rows.row import Row

__all__ = ["TABLES", "Row"]

TABLES: dict[str, tuple[Row, ...]] = {
    "unchanged": unchanged.ROWS,
    "daemon": daemon.ROWS,
    "off": off.ROWS,
    "proposers": proposers.ROWS,
    "kernels": kernels.ROWS,
}
