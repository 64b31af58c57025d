"""Whether answers to one prompt follow one law: their tokens at each position, by a chi-square test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from scipy.stats import chi2_contingency

__all__ = ["LEAST_CHANCE", "SAMPLING", "same_law"]

SAMPLING: Mapping[str, float] = {"temperature": 0.8, "top_p": 0.95}
LEAST_CHANCE = 1e-4
"""Of counts as different as those seen, where the laws are the same."""
_RARE = 10
"""A token that occurred fewer times in both together counts with the others that did."""


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
