"""Write the tables of ``docs/results.md`` from ``benchmarks/results/``: ``python -m tools.results_page``.

The figures are read from the files, so that the page cannot differ from them; a test holds the page current.
"""

from __future__ import annotations

import re
import sys

from tools.results_figures import ROOT
from tools.results_rows import TABLES, Row

PAGE = ROOT / "docs" / "results.md"


def table(rows: tuple[Row, ...]) -> str:
    lines = ["| claim | measured | hardware | command and file |", "| --- | --- | --- | --- |"]
    for row in rows:
        link = f"[{row.file}](../benchmarks/results/{row.file})"
        command = f"`{row.command}`, " if row.command else ""
        lines.append(f"| {row.claim} | {row.figure()} | {row.hardware} | {command}{link} |")
    return "\n".join(lines)


def filled(page: str) -> str:
    """The page with each table between its markers as the files say."""
    for name, rows in TABLES.items():
        marked = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not marked.search(page):
            raise ValueError(f"{PAGE.name}: no marker for table {name}")
        text = table(rows)
        page = marked.sub(lambda found, text=text: found[1] + text + "\n" + found[2], page)
    return page


def main() -> int:
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
