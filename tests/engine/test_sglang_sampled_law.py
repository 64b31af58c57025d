"""Answers of a real SGLang where our kernels verify the drafts of our algorithms: sampled ones keep to the
target's law, greedy ones are the target's.

In a scheduler on the CPU (``support.sglang_law_run``), with our kernels under Triton's interpreter: one
prompt many times, its answers compared with those of the same engine's plain decode by a chi-square test. The
seed is fixed, and the drafted answers come first: what the corpus learns while nothing is drafted depends on
the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.own_text import repeating_prompt
from support.same_law import LEAST_CHANCE, SAMPLING, same_law
from support.sglang_control import NEEDS_SGLANG, PROMPTS, ran_by_sglang

from specctl.engine.verified_batches import ENGINES, OURS

pytestmark = NEEDS_SGLANG
SUFFIX, PEAGLE = "SPECCTL_SUFFIX", "SPECCTL_PEAGLE"
FULL = 4
PLAIN_ANSWERS, WRONG_ANSWERS = 600, 150
MOST_PROBABLE, HOTTER = "the most probable token", "a higher temperature"
GREEDY_TOKENS = 24
WAYS = 6
"""In which the prompt has gone on after the same words."""


@dataclass(frozen=True)
class Drafted:
    """Answers to a prompt whose text goes on in one of the ways that it has gone before."""

    algorithm: str
    branches: int
    answers: int
    tokens: int


CASES = {
    "tree": Drafted(SUFFIX, 4, 400, 5),
    "chain": Drafted(SUFFIX, 1, 350, 3),
    "head": Drafted(PEAGLE, 1, 350, 3),
}
cases = pytest.mark.parametrize("name", CASES)
algorithms = pytest.mark.parametrize("algorithm", [SUFFIX, PEAGLE])


@pytest.fixture(scope="module")
def results(shared_models: Path, logs: Path) -> Any:
    """By algorithm and arm the answers, and what was counted meanwhile."""
    tokenizers = pytest.importorskip("tokenizers")
    target = shared_models / "reference-target"
    tokenizer = tokenizers.Tokenizer.from_file(str(target / "tokenizer.json"))
    flags = {
        SUFFIX: ["--speculative-eagle-topk", "4"],
        PEAGLE: ["--speculative-draft-model-path", str(shared_models / "reference-peagle")],
    }

    repeating = [repeating_prompt(target, WAYS, SAMPLING["temperature"])]
    others = [tokenizer.encode(prompt).ids for prompt in PROMPTS]

    def arm(prompts: Sequence[Sequence[int]], drafts: int, **more: Any) -> Any:
        defaults = {"answers": 1, "sampling": dict(SAMPLING), "by_engine": False}
        branches = more.pop("branches", 1)
        return {**defaults, "prompts": prompts, "table": [drafts, branches if drafts else 1], **more}

    def arms(algorithm: str) -> dict[str, Any]:
        found = {}
        of_algorithm = {name: case for name, case in CASES.items() if case.algorithm == algorithm}
        alike = {
            name: {"branches": case.branches, "tokens": case.tokens} for name, case in of_algorithm.items()
        }
        for name, case in of_algorithm.items():
            found[name] = arm(repeating, FULL, answers=case.answers, **alike[name])
        for drafts in (FULL, 2, 0):
            found[f"greedy, {drafts}"] = arm(
                others, drafts, tokens=GREEDY_TOKENS, sampling={"temperature": 0.0}
            )
        for name in of_algorithm:
            wrong = {"answers": WRONG_ANSWERS, **alike[name]}
            hotter = {**SAMPLING, "temperature": 1.2}
            found[f"{name}, plain"] = arm(repeating, 0, answers=PLAIN_ANSWERS, **alike[name])
            found[f"{name}, {HOTTER}"] = arm(repeating, 0, sampling=hotter, **wrong)
            found[f"{name}, {MOST_PROBABLE}"] = arm(repeating, FULL, by_engine=True, **wrong)
        return found

    def ran(algorithm: str) -> Any:
        work = {"target": str(target), "algorithm": algorithm, "drafts": FULL}
        log = logs / f"sampled-law-{algorithm}.json"
        work |= {"flags": flags[algorithm], "arms": arms(algorithm)}
        return ran_by_sglang("sglang_law_run.py", work, log, TRITON_INTERPRET="1")

    # Each has one thread.
    with ThreadPoolExecutor() as pool:
        return dict(zip(flags, pool.map(ran, flags), strict=True))


def arm_of(results: Any, name: str, of_case: str = "") -> Any:
    arms = results[CASES[name].algorithm]["arms"]
    return arms[f"{name}, {of_case}" if of_case else name]


def chances(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> list[float]:
    """That the laws are the same: of the token at each position, then of all up to it, as one token may be
    right in the whole and wrong behind another."""
    return [*same_law(one, other), *same_law(_beginnings(one), _beginnings(other))]


def _beginnings(answers: Sequence[Sequence[int]]) -> Any:
    return [[tuple(answer[: end + 1]) for end in range(len(answer))] for answer in answers]


def by_engine(counted: dict[str, float]) -> list[str]:
    return [key for key, number in counted.items() if number and key.startswith(ENGINES)]


@cases
def test_our_kernels_verified_every_draft(results: Any, name: str) -> None:
    counted = arm_of(results, name)["counted"]
    assert by_engine(counted) == []
    # Batches, of which a release of SGLang makes more or fewer; what they verified is counted below.
    assert counted[OURS] >= 10
    assert counted["guarded_steps"] == 0
    assert counted["accepted"] > CASES[name].answers
    assert counted["drafts"] - counted["accepted"] > CASES[name].answers / 2
    # Request-steps with drafts, and those in which the first one was refused with its siblings.
    assert counted["with_accepted"] >= 200
    assert counted["with_drafts"] - counted["with_accepted"] >= 30


@cases
def test_the_plain_decode_drafts_nothing(results: Any, name: str) -> None:
    counted = arm_of(results, name, "plain")["counted"]
    assert not any(counted.values())


@cases
def test_drafted_answers_follow_the_law_of_plain_ones(results: Any, name: str) -> None:
    drafted, plain = (arm_of(results, name, arm)["answers"] for arm in ("", "plain"))
    assert (len(drafted), len(plain)) == (CASES[name].answers, PLAIN_ANSWERS)
    found = chances(plain, drafted)
    assert min(found) >= LEAST_CHANCE, found


@cases
@pytest.mark.parametrize("law", [HOTTER, MOST_PROBABLE])
def test_another_law_is_noticed(results: Any, name: str, law: str) -> None:
    """The second is what SGLang's own verification does on a CPU."""
    wrong, plain = (arm_of(results, name, arm)["answers"] for arm in (law, "plain"))
    assert min(same_law(plain, wrong)) < LEAST_CHANCE


@algorithms
def test_greedy_answers_are_the_same_for_every_number_of_drafts(results: Any, algorithm: str) -> None:
    found = {drafts: results[algorithm]["arms"][f"greedy, {drafts}"] for drafts in (FULL, 2, 0)}
    for drafts in (FULL, 2):
        assert found[drafts]["answers"] == found[0]["answers"]
        assert by_engine(found[drafts]["counted"]) == []
        assert found[drafts]["counted"][OURS] >= 3
        assert found[drafts]["counted"]["accepted"] >= 5
    assert not any(found[0]["counted"].values())


@algorithms
def test_no_place_of_the_cache_is_lost(results: Any, algorithm: str) -> None:
    assert results[algorithm]["lost_places"] == 0
