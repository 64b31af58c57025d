"""Sampled requests on SGLang, verified by our kernels against SGLang's own: tokens/s, and the answers' law.

A part of benchmarks.gpu.sglang_compare. Two servers with the same proposer, of which only one has
``verify: engine``. The law: one prompt many times, its answers' tokens at each position counted, and a
chi-square test of both servers' counts; what a draft makes likelier or rarer shows there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from scipy.stats import chi2_contingency

from benchmarks.gpu.sglang_arms import Arm
from benchmarks.gpu.sglang_parts import compared, sets_of, told_against

__all__ = ["SAMPLING", "same_law", "sampled"]

SAMPLING: Mapping[str, float] = {"temperature": 0.8, "top_p": 0.95}
LEAST_CHANCE = 1e-4
"""Of counts as different as those seen, where the laws are the same."""
_LAW_PROMPTS, _LAW_ANSWERS, _LAW_TOKENS, _LAW_AT_ONCE = 2, 2_000, 5, 64
_LAW_PROMPT_TOKENS = 128
"""Of each prompt's end: most of the time goes into prompts, and the law asks for none that is long."""
_RARE = 10
"""A token that occurred fewer times in both together counts with the others that did."""


def sampled(
    arms: list[Arm], prompts: list[list[int]], batches: Sequence[int], repeats: int, tokens: int
) -> dict[str, Any]:
    """The first arm is the base of all ratios. Prompts may occur again: both corpora have seen the same."""
    base = arms[0].name
    _warm(arms, prompts)
    law = _laws(arms, prompts, tokens=min(tokens, _LAW_TOKENS))
    sets = sets_of(prompts, batches, repeats + 1, may_repeat=True, times=2)
    figures = compared(arms, sets, tokens, off_name="", options=SAMPLING)
    # Sampled outputs are no others' token for token: their law is what lets them have a ratio.
    lawful = {name: row for name, row in figures["arms"].items() if law["passes"].get(name, True)}
    told = told_against(lawful, base, [arm.name for arm in arms[1:]], lambda row: {"passes": True})
    return figures | told | {"sampling": dict(SAMPLING), "law": law}


def _warm(arms: Sequence[Arm], prompts: Sequence[list[int]]) -> None:
    """The first sampled batch compiles, 80 s of SGLang's own kernels on an H200."""
    _side_by_side(arms, prompts[:2], _LAW_TOKENS)


def _side_by_side(
    arms: Sequence[Arm], prompts: Sequence[list[int]], tokens: int, at_once: int = 0
) -> list[dict[str, Any] | None]:
    """For what is not timed."""
    with ThreadPoolExecutor(len(arms)) as pool:
        return list(pool.map(lambda arm: arm.run(prompts, tokens, at_once, SAMPLING), arms))


def _laws(arms: Sequence[Arm], prompts: Sequence[list[int]], *, tokens: int) -> dict[str, Any]:
    """By arm: the chances of the counts at each position of each prompt, beside the first arm's."""
    at_once = min(_LAW_AT_ONCE, *(arm.setting.places for arm in arms))
    found: dict[str, list[list[float]]] = {arm.name: [] for arm in arms[1:]}
    for prompt in prompts[:_LAW_PROMPTS]:
        asked = [prompt[-_LAW_PROMPT_TOKENS:]] * _LAW_ANSWERS
        answers = _side_by_side(arms, asked, tokens, at_once)
        if None in answers:
            raise RuntimeError("a server has died")
        base, *others = [one["outputs"] for one in answers if one is not None]
        for name, outputs in zip(found, others, strict=True):
            found[name].append(same_law(base, outputs))
    passes = {name: min(map(min, chances)) >= LEAST_CHANCE for name, chances in found.items()}
    print(f"law: least chance {found}, {passes}", flush=True)
    return {"answers": _LAW_ANSWERS, "chances": found, "passes": passes}


def same_law(one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> list[float]:
    """By position: how likely counts at least as different are, were both drawn from one law.

    one, other: answers of the same length each. All tokens are compared, and the commonest with all others,
    as a rule that is lossy favours the one that is drafted most.
    """
    chances = []
    for position in range(len(one[0])):
        counts = [Counter(answer[position] for answer in answers) for answers in (one, other)]
        both = counts[0] + counts[1]
        common = [token for token, number in both.most_common() if number >= _RARE]
        least = min(_chance(counts, common), _chance(counts, common[:1]))
        chances.append(min(2.0 * least, 1.0))
    return chances


def _chance(counts: Sequence[Counter[int]], tokens: Sequence[int]) -> float:
    """Of a table with a column for each of the tokens and one for all others."""
    rows = [[count[token] for token in tokens] for count in counts]
    rest = [sum(count.values()) - sum(row) for count, row in zip(counts, rows, strict=True)]
    if any(rest):
        rows = [[*row, left] for row, left in zip(rows, rest, strict=True)]
    return 1.0 if len(rows[0]) < 2 else float(chi2_contingency(rows).pvalue)
