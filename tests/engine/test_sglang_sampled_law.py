"""Sampled answers of a real SGLang keep to the target's law where our kernels verify SPECCTL_SUFFIX's drafts.

In a scheduler on the CPU (``support.sglang_law_run``), with our kernels under Triton's interpreter: one
prompt many times, its answers compared with those of the same engine's plain decode by the chi-square test of
the GPU benchmark. The seed is fixed, and the drafted answers come first: what the corpus learns while nothing
is drafted depends on the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.sglang_control import NEEDS_SGLANG, ran_by_sglang

from benchmarks.gpu.sglang_sampled import LEAST_CHANCE, SAMPLING, same_law
from specctl.engine.verified_batches import ENGINES, OURS

pytestmark = NEEDS_SGLANG
FULL = 4
PLAIN_ANSWERS, WRONG_ANSWERS = 600, 150
MOST_PROBABLE, HOTTER = "the most probable token", "a higher temperature"


@dataclass(frozen=True)
class Drafted:
    """Answers to a prompt whose text goes on in one of the ways that it has gone before."""

    prompt: str
    branches: int
    answers: int
    tokens: int


CASES = {
    "tree": Drafted("red, blue, red, green, red, blue, red, green, red,", 3, 400, 5),
    # Of its continuations, unlike those above, the nucleus holds some dozens.
    "chain": Drafted("He said yes. She said no. He said no. She said yes. He said", 1, 350, 3),
}
cases = pytest.mark.parametrize("name", CASES)


@pytest.fixture(scope="module")
def told(shared_models: Path, logs: Path) -> Any:
    """By arm the answers, and what was counted meanwhile."""
    tokenizers = pytest.importorskip("tokenizers")
    target = shared_models / "reference-target"
    tokenizer = tokenizers.Tokenizer.from_file(str(target / "tokenizer.json"))

    def arm(case: Drafted, drafts: int, answers: int, *, by_engine: bool = False, **changed: float) -> Any:
        return {
            "prompt": tokenizer.encode(case.prompt).ids,
            "answers": answers,
            "tokens": case.tokens,
            "sampling": {**SAMPLING, **changed},
            "table": [drafts, case.branches],
            "by_engine": by_engine,
        }

    arms = {name: arm(case, FULL, case.answers) for name, case in CASES.items()}
    for name, case in CASES.items():
        arms[f"{name}, plain"] = arm(case, 0, PLAIN_ANSWERS)
        arms[f"{name}, {HOTTER}"] = arm(case, 0, WRONG_ANSWERS, temperature=1.2)
        arms[f"{name}, {MOST_PROBABLE}"] = arm(case, FULL, WRONG_ANSWERS, by_engine=True)
    work = {"target": str(target), "drafts": FULL, "arms": arms}
    return ran_by_sglang("sglang_law_run.py", work, logs / "sampled-law.json", TRITON_INTERPRET="1")


def chances(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> list[float]:
    """That the laws are the same: of the token at each position, then of all up to it, as one token may be
    right in the whole and wrong behind another."""
    return [*same_law(one, other), *same_law(_beginnings(one), _beginnings(other))]


def _beginnings(answers: Sequence[Sequence[int]]) -> Any:
    return [[tuple(answer[: end + 1]) for end in range(len(answer))] for answer in answers]


@cases
def test_our_kernels_verified_every_draft(told: Any, name: str) -> None:
    counted = told["arms"][name]["counted"]
    assert [key for key, number in counted.items() if number and key.startswith(ENGINES)] == []
    assert counted[OURS] >= 20
    assert counted["guarded_steps"] == 0
    assert counted["accepted"] > CASES[name].answers
    assert counted["drafts"] - counted["accepted"] > CASES[name].answers / 2
    # Request-steps with drafts, and those in which the first one was refused with its siblings.
    assert counted["with_accepted"] >= 200
    assert counted["with_drafts"] - counted["with_accepted"] >= 30


@cases
def test_the_plain_decode_drafts_nothing(told: Any, name: str) -> None:
    counted = told["arms"][f"{name}, plain"]["counted"]
    assert not any(counted.values())


@cases
def test_drafted_answers_follow_the_law_of_plain_ones(told: Any, name: str) -> None:
    drafted, plain = (told["arms"][arm]["answers"] for arm in (name, f"{name}, plain"))
    assert (len(drafted), len(plain)) == (CASES[name].answers, PLAIN_ANSWERS)
    found = chances(plain, drafted)
    assert min(found) >= LEAST_CHANCE, found


@cases
@pytest.mark.parametrize("law", [HOTTER, MOST_PROBABLE])
def test_another_law_is_noticed(told: Any, name: str, law: str) -> None:
    """The second is what SGLang's own verification does on a CPU."""
    wrong, plain = (told["arms"][f"{name}, {arm}"]["answers"] for arm in (law, "plain"))
    assert min(same_law(plain, wrong)) < LEAST_CHANCE


def test_no_place_of_the_cache_is_lost(told: Any) -> None:
    assert told["lost_places"] == 0
