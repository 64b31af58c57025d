"""What is called a difference: how often two identical arms are, and how often a true 10 % is found."""

from __future__ import annotations

import math

import numpy as np
import pytest

from specctl.bench.intervals import WIDE_RATIO, Outcome, Ratio, paired_ratio, t_quantile

ROUNDS = 6
"""The default of the command."""
NOISE = 0.03
"""Standard deviation of a run's logarithm, beside what both runs of a round share."""
RUNS = 2000


def outcomes(true_ratio: float, noise: float = NOISE, rounds: int = ROUNDS) -> list[Outcome]:
    rng = np.random.default_rng(1)
    shared = rng.normal(0, 0.1, (RUNS, rounds))
    ours = np.exp(shared + rng.normal(0, noise, (RUNS, rounds)) + math.log(true_ratio))
    theirs = np.exp(shared + rng.normal(0, noise, (RUNS, rounds)))
    return [paired_ratio(list(a), list(b)).outcome for a, b in zip(ours, theirs, strict=True)]


@pytest.mark.parametrize("noise", [0.003, 0.03, 0.1])
@pytest.mark.parametrize("rounds", [3, 6, 12])
def test_identical_arms_are_no_difference_in_19_of_20(noise: float, rounds: int) -> None:
    # Three standard errors of a share of 5 % in 2,000 runs.
    allowed = 0.05 + 3 * math.sqrt(0.05 * 0.95 / RUNS)
    found = outcomes(1.0, noise, rounds)
    assert 1 - found.count(Outcome.NO_DIFFERENCE) / RUNS < allowed
    assert outcomes(1.0).count(Outcome.NO_DIFFERENCE) / RUNS >= 0.94


@pytest.mark.parametrize(("true_ratio", "expected"), [(1.1, Outcome.FASTER), (1 / 1.1, Outcome.SLOWER)])
def test_ten_percent_is_found_in_9_of_10(true_ratio: float, expected: Outcome) -> None:
    found = outcomes(true_ratio)
    assert found.count(expected) / RUNS >= 0.9
    wrong = {Outcome.FASTER, Outcome.SLOWER} - {expected}
    assert not wrong & set(found)


def added(true_ratio: float, noise: float) -> list[Outcome]:
    """As without --rounds: 6 rounds, and 6 more while an interval is wide, up to 18."""
    rng = np.random.default_rng(2)
    found = []
    for ratios in np.exp(rng.normal(math.log(true_ratio), noise, (RUNS, 18))):
        for rounds in (6, 12, 18):
            one = paired_ratio(list(ratios[:rounds]), [1.0] * rounds)
            assert one.low is not None
            assert one.high is not None
            if one.high - one.low <= 2 * WIDE_RATIO * one.ratio:
                break
        found.append(one.outcome)
    return found


@pytest.mark.parametrize("noise", [0.03, 0.06, 0.08, 0.1])
def test_rounds_that_are_added_find_10_percent_in_noise_and_nothing_in_identical_arms(noise: float) -> None:
    allowed = 0.05 + 3 * math.sqrt(0.05 * 0.95 / RUNS)
    assert 1 - added(1.0, noise).count(Outcome.NO_DIFFERENCE) / RUNS < allowed
    assert added(0.9, noise).count(Outcome.SLOWER) / RUNS > 0.95


def test_a_drift_of_the_machine_moves_no_ratio() -> None:
    # Each run is 1 % slower than the one before it; arms take turns A B B A.
    speeds = [0.99**i for i in range(12)]
    first = [speeds[i] for i in (0, 3, 4, 7, 8, 11)]
    second = [speeds[i] for i in (1, 2, 5, 6, 9, 10)]
    found = paired_ratio(first, second)
    assert found.ratio == pytest.approx(1.0)
    assert found.outcome is Outcome.NO_DIFFERENCE


def test_a_difference_that_nobody_feels_is_none() -> None:
    assert Ratio(1.005, 1.004, 1.006, 6).outcome is Outcome.NO_DIFFERENCE


def test_words() -> None:
    assert Ratio(1.12, 1.08, 1.16, 6).words == "faster by 12.0 % (8.0 to 16.0)"
    assert Ratio(0.9, 0.85, 0.95, 6).words == "slower by 10.0 % (5.0 to 15.0)"
    assert Ratio(1.0, 0.98, 1.03, 6).words == "no difference (-2.0 to +3.0 %)"
    assert paired_ratio([1.2, 1.2], [1.0, 1.0]).outcome is Outcome.TOO_FEW


@pytest.mark.parametrize(
    ("freedom", "expected"), [(1, 21.205), (2, 5.643), (20, 2.336), (30, 2.2783), (120, 2.1962)]
)
def test_quantiles_of_student(freedom: int, expected: float) -> None:
    assert t_quantile(freedom) == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize(
    ("speeds", "others"), [([], []), ([1.0], [1.0, 2.0]), ([0.0, 1.0, 1.0], [1.0, 1.0, 1.0])]
)
def test_what_cannot_be_compared_is_refused(speeds: list[float], others: list[float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        paired_ratio(speeds, others)
