"""The page of results says what the files say."""

from tools.results_page import PAGE, filled


def test_tables_are_current() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == filled(page), "run python -m tools.results_page"
