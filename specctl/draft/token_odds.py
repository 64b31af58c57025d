"""By how much likelier a drafted token is than its votes say, for what it is and what it follows.

Votes know nothing of words: after the same match and with the same votes, a bracket comes true more often
than a name. So a token's chance c by its votes (``calibration``) becomes c * o / (1 - c + c * o). o is a
product of three odds: the token's, the token's behind the one before it, and those of every token, which say
what is to be expected of tokens that were not seen yet. The first two stand at places by a hash. That is a
logistic regression on hashed features (Weinberger et al., arXiv 0902.2206); its offset is the logit of c.

Odds follow outcomes, a batch of them at a time, each place by steps of its own size (Duchi et al., JMLR 12,
2011, section 1.1). All traffic classes share them. They are kept in memory only.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["EVERY", "EXPECTED_UNIT", "MIXES", "PLACES", "PLACE_BITS", "TokenOdds", "chance_of", "note"]

PLACE_BITS = 13
PLACES = 2**PLACE_BITS
EVERY = 0
"""The place of what counts for every token; few others fall on it."""
MIXES = 2_654_435_761, 2_246_822_519, 3_266_489_917
"""Of a token, of the one before it and of both: Knuth's multiplier and two of xxHash's."""
EXPECTED_UNIT = 1024
"""Of one expected token, which is counted as an integer: sums do not depend on their order."""
PRIOR = 20.0
"""Variance of outcomes that hold a place at odds of 1."""
KNOWN_MOST = 8192.0
"""Variance of outcomes, over all places, beyond which old ones lose weight."""
PACE = 8.0
"""A place moves by so many times the mean error of all its outcomes, so that recent ones count for more."""
ODDS_MOST = 16.0
_FEATURES = 3
_TOKEN, _BEFORE, _PAIR = (np.uint64(mix) for mix in MIXES)
_HALF = np.uint64(15)
_MASK, _SHIFT = np.uint64(2**32 - 1), np.uint64(32 - PLACE_BITS)


class TokenOdds:
    """The odds of all places, and the outcomes that they follow."""

    def __init__(self) -> None:
        self.odds = np.ones(PLACES, np.float32)
        """float32[PLACES], at a fixed address."""
        self._logits = np.zeros(PLACES)
        self._known = np.zeros(PLACES)

    def forget(self) -> None:
        """Begin anew."""
        self.odds[:], self._logits[:], self._known[:] = 1.0, 0.0, 0.0

    def learn(self, counted: npt.NDArray[np.int32]) -> None:
        """counted int32[PLACES, 3]: what ``note`` added since the last time."""
        seen = np.flatnonzero(counted[:, 0])
        drafted, accepted, expected = counted[seen].T.astype(np.float64)
        expected /= EXPECTED_UNIT
        variance = expected * (1.0 - expected / drafted)
        self._known[seen] += variance
        self._known *= min(1.0, KNOWN_MOST / max(self._known.sum(), 1.0))
        # At most what these outcomes alone ask for, shared by the features that may say the same.
        inertia = np.maximum((self._known[seen] + PRIOR) / PACE, _FEATURES * variance)
        most = np.log(ODDS_MOST)
        self._logits[seen] = np.clip(self._logits[seen] + (accepted - expected) / inertia, -most, most)
        self.odds[seen] = np.exp(self._logits[seen])


@njit(cache=True, nogil=True)
def _places_of(token, before):
    """Of a token, and of it behind ``before``."""
    one = (np.uint64(token) * _TOKEN) & _MASK
    other = (np.uint64(before) * _BEFORE) & _MASK
    pair = (((one ^ (other >> _HALF)) + other) * _PAIR) & _MASK
    return np.int64(one >> _SHIFT), np.int64(pair >> _SHIFT)


@njit(cache=True, nogil=True)
def chance_of(table, entry, token, before):
    """The probability that ``token`` comes true behind ``before``, given that everything before it did.

    table: chances float32[ENTRIES] as in ``calibration``, odds float32[PLACES]; entry: of its votes.
    """
    chances, odds = table
    one, pair = _places_of(token, before)
    chance = np.float64(chances[entry])
    likely = chance * (np.float64(odds[one]) * np.float64(odds[pair]) * np.float64(odds[EVERY]))
    return likely / (1.0 - chance + likely)


@njit(cache=True, nogil=True)
def note(table, entry, token, before, came_true, counted):
    """Count an outcome in int32[3 * PLACES]: drafted, accepted and expected tokens of each place."""
    expected = np.int32(chance_of(table, entry, token, before) * EXPECTED_UNIT + 0.5)
    one, pair = _places_of(token, before)
    for place in (one, pair, EVERY):
        counted[3 * place] += 1
        counted[3 * place + 1] += came_true
        counted[3 * place + 2] += expected
