"""How likely a drafted token comes true, from how the occurrences of its context voted.

A logistic regression on the source, the matched tokens (drafted ones included), the votes of the token and
the voters. It was fitted to replays of code, agents' transcripts and SQL. One vote after a short
match is weak evidence, and weaker in the corpus than in the request's own text.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from specctl.draft.gather import CANDIDATES

__all__ = ["MOST_MATCH", "chance_at", "chances", "features"]

MOST_MATCH = 32
# Weights of ``features`` for a request's own text and for a corpus.
_OWN = (-1.6231, 0.1962, 0.0212, -0.3505, 0.5949, 0.015, 0.2977, 0.778, 0.785)
_CORPUS = (-2.3711, -0.0929, 0.1866, -0.3788, 0.4237, -0.4235, 0.241, 1.0151, 0.667)
Numbers = npt.NDArray[np.int64]


def features(match: Numbers, votes: Numbers, voters: Numbers) -> npt.NDArray[np.float64]:
    """[9, ...] for arrays of one shape: matched tokens, votes for the token, all votes."""
    log_match, log_voters = np.log(np.maximum(match, 1)), np.log(np.maximum(voters, 1))
    unanimous = votes == voters
    others = np.maximum(voters - votes, 0)
    return np.stack([
        np.ones_like(log_match), log_match, log_match**2, log_voters, np.log((votes + 0.5) / (others + 0.5)),
        unanimous, log_match * log_voters, log_match * unanimous, np.log(np.maximum(votes, 1)),
    ])  # fmt: skip


def chances() -> npt.NDArray[np.float32]:
    """float32[2, ...]: own or corpus, then match, votes and voters flattened, as ``chance_at`` reads them.

    The probability that a token comes true, given that everything before it did.
    """
    match, votes, voters = np.meshgrid(
        np.arange(MOST_MATCH + 1), np.arange(CANDIDATES + 1), np.arange(CANDIDATES + 1), indexing="ij"
    )
    seen = features(match, votes, voters).reshape(len(_OWN), -1)
    logits = np.stack([np.array(weights) @ seen for weights in (_OWN, _CORPUS)])
    table: npt.NDArray[np.float32] = (1.0 / (1.0 + np.exp(-logits))).astype(np.float32)
    return table


@njit(cache=True, nogil=True)
def chance_at(chance, match, votes, voters):
    """chance: one row of ``chances``."""
    return chance[(min(match, MOST_MATCH) * (CANDIDATES + 1) + votes) * (CANDIDATES + 1) + voters]
