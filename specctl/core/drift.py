"""Has the acceptance changed? A likelihood-ratio test between the newest trials and the past.

Two-sample G test (Sokal and Rohlf, "Biometry", section 17.4) over the conditional acceptance by position:
unlike a test of mean lengths it is not fooled by a rare long copy in otherwise random text, because a long
run's inner positions are judged against past runs.
"""

from __future__ import annotations

from functools import cache
from math import inf, log, sqrt

__all__ = ["Trials", "dispersion_of", "has_drifted"]

# Accepted and reached, by position.
Trials = tuple[tuple[float, float], ...]

# Standard normal quantile of a false alarm in one test: about 1 in 2,000.
ALARM_SIGMA = 3.3
# A run of accepted tokens at a position-1 rate that moved by 2.5 sigma is drift as well: with one request
# on a CPU a full draft is one trial of position 1 a second, too few for ALARM_SIGMA within 3 s.
FIRST_SIGMA = 2.5
TOKENS_SIGMA = 4.0
PAST_TRIALS_MIN = 4.0


def dispersion_of(newest: Trials, past: Trials) -> float | None:
    """Pearson's statistic over its median under independent trials. None: too few of them."""
    pairs = [
        pair for pair in zip(newest, past, strict=False) if min(pair[0][1], pair[1][1]) >= PAST_TRIALS_MIN
    ]
    if not pairs:
        return None
    return sum(_pearson(*pair) for pair in pairs) / _chi_square_quantile(len(pairs), 0.0)


def has_drifted(newest: Trials, past: Trials, dispersion: float = 1.0) -> bool:
    """True when the newest trials contradict the past ones. False with too few of either.

    ``dispersion``: so many trials tell as much as one would if all were independent (quasi-likelihood;
    McCullagh and Nelder, "Generalized Linear Models", section 4.5).
    """
    if dispersion > 1.0:
        newest, past = _thinned(newest, dispersion), _thinned(past, dispersion)
    if not newest or not past or past[0][1] < PAST_TRIALS_MIN:
        return False
    pairs = [pair for pair in zip(newest, past, strict=False) if pair[0][1] > 0 and pair[1][1] > 0]
    if not pairs or _cannot_have_drifted(pairs):
        return False
    by_position = [_g(new, old) for new, old in pairs]
    first = by_position[0]
    if first > _chi_square_quantile(1, ALARM_SIGMA):
        return True
    if sum(by_position) > _chi_square_quantile(len(by_position), ALARM_SIGMA):
        return True
    tokens = _g(_pooled(newest), _pooled(past))
    return first > FIRST_SIGMA**2 and tokens > TOKENS_SIGMA**2


def _cannot_have_drifted(pairs: list[tuple[tuple[float, float], tuple[float, float]]]) -> bool:
    """Mostly settles it without a logarithm: G is at most twice Pearson's statistic, as a Kullback-Leibler
    divergence is at most the chi-square divergence."""
    first = 2.0 * _pearson(*pairs[0])
    if first > FIRST_SIGMA**2:
        return False
    rest = sum([_pearson(new, old) for new, old in pairs[1:]])
    return first + 2.0 * rest <= _chi_square_quantile(len(pairs), ALARM_SIGMA)


def _pearson(new: tuple[float, float], old: tuple[float, float]) -> float:
    """Chi-square statistic of "two rates" against "one rate"."""
    accepted_new, reached_new = new
    accepted_old, reached_old = old
    reached = reached_new + reached_old
    ratio = (accepted_new + accepted_old) / reached
    difference = accepted_new / reached_new - accepted_old / reached_old
    if not 0.0 < ratio < 1.0:
        return 0.0 if difference == 0.0 else inf
    return difference * difference * reached_new * reached_old / reached / (ratio * (1.0 - ratio))


def _g(new: tuple[float, float], old: tuple[float, float]) -> float:
    """Twice the log-likelihood ratio of "two rates" against "one rate"."""
    accepted, reached = new[0] + old[0], new[1] + old[1]
    return 2.0 * (_log_likelihood(*new) + _log_likelihood(*old) - _log_likelihood(accepted, reached))


def _log_likelihood(accepted: float, reached: float) -> float:
    """Binomial log-likelihood at the own rate, without the constant."""
    missed = reached - accepted
    total = 0.0
    if accepted > 0:
        total += accepted * log(accepted / reached)
    if missed > 0:
        total += missed * log(missed / reached)
    return total


def _thinned(trials: Trials, dispersion: float) -> Trials:
    return tuple((accepted / dispersion, reached / dispersion) for accepted, reached in trials)


def _pooled(trials: Trials) -> tuple[float, float]:
    return sum(accepted for accepted, _ in trials), sum(reached for _, reached in trials)


@cache
def _chi_square_quantile(degrees: int, sigma: float) -> float:
    """Wilson and Hilferty's approximation (1931)."""
    spread = 2.0 / (9.0 * degrees)
    return float(degrees * (1.0 - spread + sigma * sqrt(spread)) ** 3)
