"""Write the tables of ``docs/results.md`` from ``benchmarks/results/``: ``python -m tools.results_page``.

The figures are read from the files, so that the page cannot differ from them; a test holds the page current.
"""

from __future__ import annotations

import re
import sys

from tools.results_figures import ROOT
from tools.results_rows import TABLES

PAGE = ROOT / "docs" / "results.md"


def filled(page: str) -> str:
    """The page with each table between its markers as the files say."""
    for name, table in TABLES.items():
        marked = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not marked.search(page):
            raise ValueError(f"{PAGE.name}: no marker for table {name}")
        text = table()
        page = marked.sub(lambda found, text=text: found[1] + text + "\n" + found[2], page)
    return page


def main() -> int:
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
