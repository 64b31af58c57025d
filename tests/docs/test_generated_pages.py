"""Pages that are written from the code or from result files are current."""

from __future__ import annotations

import pytest

from tools import reference_pages
from tools.results_page import PAGE, filled


def test_results_say_what_the_files_say() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page), "run python -m tools.results_page"


@pytest.mark.parametrize("name", reference_pages.pages())
def test_reference_pages_are_current(name: str) -> None:
    text = (reference_pages.DOCS / name).read_text(encoding="utf-8")
    assert text == reference_pages.pages()[name], "run python -m tools.reference_pages"
