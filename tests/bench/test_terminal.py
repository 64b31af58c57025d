"""What a result looks like in a terminal of some width."""

from __future__ import annotations

import pytest
from rich.console import Console

from specctl.bench.intervals import Outcome
from specctl.bench.loads import Load
from specctl.bench.results import ArmFigures, BenchResult, Comparison, Differing, OutputCheck, Percentiles
from specctl.bench.terminal import print_result
from specctl.bench.words import outputs_words

LOAD = Load(prompts="chat", concurrency=8)
FOUND = Comparison(
    arm="autotune",
    baseline="off",
    load=LOAD.title,
    ratio=1.0,
    low=0.9,
    high=1.1,
    rounds=6,
    outcome=Outcome.NO_DIFFERENCE,
)


def figures(arm: str) -> ArmFigures:
    latency = Percentiles(count=9, mean_s=4.9, p50_s=4.8, p95_s=5.1, p99_s=6.0)
    return ArmFigures(
        arm=arm,
        load=LOAD.title,
        tokens_per_s=1234.5,
        tokens_per_s_min=1200.0,
        tokens_per_s_max=1300.0,
        steady_tokens_per_s=None,
        decode_tokens_per_s=None,
        ttft=latency,
        tpot=latency,
        itl=latency,
        e2el=latency,
        acceptance=None,
    )


def result(*outputs: OutputCheck) -> BenchResult:
    """With what is printed."""
    return BenchResult.model_construct(
        loads=(LOAD,),
        figures=(figures("off"), figures("autotune")),
        comparisons=(FOUND,),
        outputs=outputs,
        losses=(),
        warnings=("said", "new"),
        verdict="no arm is faster",
        price_per_hour=None,
        search=None,
    )


def shown(width: int) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        print_result(result(), console, as_json=False, said=["said"])
    return captured.get()


@pytest.mark.parametrize(("width", "latencies"), [(80, "4800 4800"), (120, "4800 / 5100 4800 / 5100")])
def test_no_word_is_broken(width: int, latencies: str) -> None:
    lines = shown(width).splitlines()
    (row,) = [line for line in lines if "autotune" in line and "1234.5" in line]
    assert latencies in " ".join(row.split())
    assert FOUND.words in (row if width == 120 else lines[lines.index(row) + 1])
    assert all(len(line) <= width for line in lines)


def test_a_warning_that_was_printed_is_not_repeated() -> None:
    assert "warning: new" in shown(120)
    assert "warning: said" not in shown(120)


@pytest.mark.parametrize(
    ("ties", "words"),
    [
        ([True] * 4, "all 4 differences are ties"),
        ([True], "the difference is a tie"),
        ([True, True, None], "2 of 3 differences are ties, 1 could not be scored"),
        ([True, False], "1 of 2 differences is a tie, 1 is no tie: up to 0.5 in log probability"),
        ([None], "1 could not be scored"),
    ],
)
def test_ties_are_counted_in_words(ties: list[bool | None], words: str) -> None:
    differing = tuple(Differing(prompt_id="p", at_token=1, margin=0.5, is_tie=is_tie) for is_tie in ties)
    check = OutputCheck(arm="2", baseline="off", compared=9, identical=9 - len(ties), differing=differing)
    (line,) = outputs_words(result(check))
    assert line.endswith(f": 2 and off; {words}")
