"""What the demo says of tables and rounds, and its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from demo.arms import ArmRun
from demo.page import write_page
from demo.phases import PHASES
from demo.result import Result
from demo.watch import describe
from specctl.contract.table import AppliedTable, TableRow, uniform_rows
from testing.load import LoadResult

ARMS = ("off", "always 8", "specctl")


def run(name: str, speeds: tuple[float, ...], text: str = "x") -> ArmRun:
    loads = [
        LoadResult(20.0 * i, 20.0 * i + 10.0, [(20.0 * i + 5.0, int(10 * speed))], outputs={"prompt": text})
        for i, speed in enumerate(speeds)
    ]
    return ArmRun(name, loads)


def result(ours: tuple[float, ...], texts: tuple[str, ...] = ("x", "x", "x")) -> Result:
    speeds = ((20.0, 50.0, 40.0), (50.0, 40.0, 40.0), ours)
    runs = [run(name, each, text) for name, each, text in zip(ARMS, speeds, texts, strict=True)]
    return Result([runs, runs], ARMS)


def test_neighbours_that_draft_alike_are_one() -> None:
    rows = (
        TableRow(decode_batch_from=1, decode_batch_to=1, num_speculative_tokens=8),
        TableRow(decode_batch_from=2, decode_batch_to=3, num_speculative_tokens=8, min_token_prob=0.2),
        TableRow(decode_batch_from=4, decode_batch_to=5, num_speculative_tokens=0, min_token_prob=0.2),
        TableRow(decode_batch_from=6, num_speculative_tokens=0),
    )
    words = "1: 8 tokens; 2-3: 8 tokens, probability >= 0.2; 4 and more: off"
    assert describe(AppliedTable.model_construct(rows=rows)) == words
    assert describe(AppliedTable.model_construct(rows=uniform_rows(3))) == "any number of requests: 3 tokens"


@pytest.mark.parametrize(
    ("ours", "words", "is_behind"),
    [
        pytest.param(
            (50.0, 50.0, 40.0), "specctl is ahead of the best constant (always 8", False, id="ahead"
        ),
        pytest.param((49.0, 41.0, 40.0), "specctl is level with the best constant", False, id="level"),
        pytest.param((30.0, 40.0, 40.0), "specctl is behind the best constant", True, id="behind"),
    ],
)
def test_the_verdict_follows_from_speeds_and_noise(
    ours: tuple[float, ...], words: str, is_behind: bool
) -> None:
    found = result(ours)
    assert words in found.verdict
    assert found.is_behind is is_behind
    assert 'off loses 60% in "1 request, copying"' in found.verdict


def test_outputs_are_compared_between_arms_and_rounds() -> None:
    assert result((50.0, 50.0, 40.0)).outputs == (15, 15)
    same, compared = result((50.0, 50.0, 40.0), ("x", "x", "y")).outputs
    assert (same, compared) == (9, 15)


def test_the_page_begins_with_the_verdict(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    found = result((50.0, 50.0, 40.0))
    write_page(page, found, "about", "other work runs on this machine")
    text = page.read_text()
    assert text.index(found.verdict.split(":")[0]) < text.index("Mean of the phases")
    assert len(PHASES) == 3
    for words in ("Outputs identical: 15 of 15.", "prefers-color-scheme: dark", 'name="viewport"'):
        assert words in text
