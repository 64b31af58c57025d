"""What the table of features says is shown by tests that exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from tools.support_page import ENGINES, FEATURES, missing_tests, read_cells, support_page


def test_every_test_that_is_named_exists() -> None:
    assert missing_tests(read_cells()) == []


def test_every_feature_has_a_line_and_what_nothing_shows_is_not_known() -> None:
    page, cells = support_page(), read_cells()
    for feature, title in FEATURES.items():
        (line,) = [line for line in page.splitlines() if line.startswith(f"| {title} |")]
        words = line.removesuffix(" |").split(" | ")[1:]
        assert len(words) == len(ENGINES)
        for engine, shown in zip(ENGINES, words, strict=True):
            cell = cells.get(feature, {}).get(engine)
            assert shown.startswith("**" if cell and cell.tests else "not known")


def table(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "support.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    "test",
    [
        "docs/test_support_page.py::test_that_is_not_there",
        "docs/no_file.py::test_x",
        "docs/test_support_page.py::table",
    ],
)
def test_a_name_without_a_test_is_noticed(tmp_path: Path, test: str) -> None:
    cells = read_cells(table(tmp_path, f"lora: {{sglang: {{works: ['{test}']}}}}"))
    assert missing_tests(cells) == [test]


def test_a_test_of_a_class_is_found(tmp_path: Path) -> None:
    named = "engine/test_suffix_server.py::TestDaemon::test_status_is_readable"
    assert missing_tests(read_cells(table(tmp_path, f"lora: {{vllm_v1: {{works: ['{named}']}}}}"))) == []


@pytest.mark.parametrize("text", ["lara: {sglang: {note: x}}", "lora: {trt: {note: x}}"])
def test_unknown_names_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="unknown"):
        read_cells(table(tmp_path, text))


@pytest.mark.parametrize("cell", ["{works: []}", "{perhaps: [x]}"])
def test_a_state_needs_a_test(tmp_path: Path, cell: str) -> None:
    with pytest.raises(ValidationError):
        read_cells(table(tmp_path, f"lora: {{sglang: {cell}}}"))
