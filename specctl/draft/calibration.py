"""How likely a drafted token comes true, from how the occurrences of its context voted.

A logistic regression on the source, the matched tokens (drafted ones included), the votes of the token and
the voters. It was fitted to replays of code, agents' transcripts and SQL. One vote after a short
match is weak evidence, and weaker in the corpus than in the request's own text. ``outcomes`` corrects it.
A draft that goes on behind an edit (``resume``) has entries without voters, by its depth.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
from numba import njit

from specctl.draft.gather import CANDIDATES

__all__ = ["ENTRIES", "MOST_MATCH", "PRIOR_TOKENS", "chances", "entry_of", "features", "refit"]

MOST_MATCH = 32
ENTRIES = (MOST_MATCH + 1) * (CANDIDATES + 1) ** 2
"""Of a row of ``chances``."""
# Weights of ``features`` for a request's own text and for a corpus.
_OWN = (-1.6231, 0.1962, 0.0212, -0.3505, 0.5949, 0.015, 0.2977, 0.778, 0.785, 2.68, 0.25, -0.52)
_CORPUS = (-2.3711, -0.0929, 0.1866, -0.3788, 0.4237, -0.4235, 0.241, 1.0151, 0.667, 3.49, 0.02, -0.65)
DOUBTS_MOST = 3
"""Of ``resume``: 0 to so many, in the place of voters where there is no vote."""
PRIOR_TOKENS = 1100.0
"""Outcomes that the built-in weights count as, in a fit to outcomes."""
ENTRY_TOKENS = 2048.0
"""Outcomes that the fit counts as, in the share that is accepted of one entry."""
_NEWTON_STEPS, _LEAST_STEP = 20, 1e-5
_MOST_LOGIT = 12.0
Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def features(match: Numbers, votes: Numbers, voters: Numbers) -> npt.NDArray[np.float64]:
    """[12, ...] for arrays of one shape: matched tokens, votes for the token, all votes."""
    resumed = votes == 0
    doubts = np.where(resumed, voters, 0) / np.maximum(match, 1)
    voters = np.where(resumed, 0, voters)
    log_match, log_voters = np.log(np.maximum(match, 1)), np.log(np.maximum(voters, 1))
    unanimous = (votes == voters) & ~resumed
    others = np.maximum(voters - votes, 0)
    return np.stack([
        np.ones_like(log_match), log_match, log_match**2, log_voters, np.log((votes + 0.5) / (others + 0.5)),
        unanimous, log_match * log_voters, log_match * unanimous, np.log(np.maximum(votes, 1)),
        resumed, log_match * resumed, doubts,
    ])  # fmt: skip


def chances() -> npt.NDArray[np.float32]:
    """float32[2, ...]: own or corpus, then match, votes and voters flattened, at ``entry_of``.

    The probability that a token comes true, given that everything before it did.
    """
    logits = np.stack([np.array(weights) @ _seen()[0] for weights in (_OWN, _CORPUS)])
    table: npt.NDArray[np.float32] = (1.0 / (1.0 + np.exp(-logits))).astype(np.float32)
    return table


@cache
def _seen() -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Features float64[12, ENTRIES], and which entries can occur."""
    match, votes, voters = np.meshgrid(
        np.arange(MOST_MATCH + 1), np.arange(CANDIDATES + 1), np.arange(CANDIDATES + 1), indexing="ij"
    )
    can_occur = (match > 0) & (((votes > 0) & (votes <= voters)) | ((votes == 0) & (voters <= DOUBTS_MOST)))
    return features(match, votes, voters).reshape(len(_OWN), -1), can_occur.ravel()


def refit(source: int, counts: Floats) -> npt.NDArray[np.float32]:
    """A row of ``chances``, 0 = own text or 1 = corpus, that follows outcomes: counts float64[ENTRIES, 2],
    drafted and accepted tokens of each entry.

    The most likely weights, by Newton's method, with PRIOR_TOKENS spread over all entries as a prior; then
    each entry for itself, with ENTRY_TOKENS as the fit says.
    """
    seen, can_occur = _seen()
    built_in = np.array((_OWN, _CORPUS)[source])
    prior = np.where(can_occur, PRIOR_TOKENS / can_occur.sum(), 0.0)
    drafted = counts[:, 0] + prior
    accepted = counts[:, 1] + prior / (1.0 + np.exp(-_logits(built_in, seen)))
    fitted = _chance(_logits(_likeliest(built_in, seen, drafted, accepted), seen))
    table = (counts[:, 1] + ENTRY_TOKENS * fitted) / (counts[:, 0] + ENTRY_TOKENS)
    return table.astype(np.float32)


def _likeliest(weights: Floats, seen: Floats, drafted: Floats, accepted: Floats) -> Floats:
    """By Newton's method; a step that goes too far is halved, so that the likelihood never falls."""
    best = _likelihood(weights, seen, drafted, accepted)
    for _ in range(_NEWTON_STEPS):
        chance = _chance(_logits(weights, seen))
        curvature = np.einsum("ie,e,je->ij", seen, drafted * chance * (1.0 - chance), seen)
        step = np.linalg.solve(curvature, np.einsum("ie,e->i", seen, accepted - drafted * chance))
        while (found := _likelihood(weights + step, seen, drafted, accepted)) < best:
            step *= 0.5
            if np.abs(step).max() < _LEAST_STEP:
                return weights
        weights, best = weights + step, found
        if np.abs(step).max() < _LEAST_STEP:
            break
    return weights


def _likelihood(weights: Floats, seen: Floats, drafted: Floats, accepted: Floats) -> float:
    """Its logarithm."""
    chance = _chance(_logits(weights, seen))
    return float((accepted * np.log(chance) + (drafted - accepted) * np.log(1.0 - chance)).sum())


def _logits(weights: Floats, seen: Floats) -> Floats:
    """Without BLAS, whose threads would take the cores of a step."""
    found: Floats = np.einsum("i,ie->e", weights, seen)
    return found


def _chance(logits: Floats) -> Floats:
    chance: Floats = 1.0 / (1.0 + np.exp(-np.clip(logits, -_MOST_LOGIT, _MOST_LOGIT)))
    return chance


@njit(cache=True, nogil=True)
def entry_of(match, votes, voters):
    """Place in a row of ``chances``."""
    return (min(match, MOST_MATCH) * (CANDIDATES + 1) + votes) * (CANDIDATES + 1) + voters
