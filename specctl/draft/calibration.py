"""How likely a drafted token comes true, from how the occurrences of its context voted.

A logistic regression on the source, the matched tokens (drafted ones included), the votes of the token and
the voters. Fitted with scikit-learn on 107,000 drafted tokens of replays: agent transcripts, SWE, SQL, chat,
JSON, and Python source over corpora of 1 and 10 million tokens (these weigh three times). One vote after a
short match is weak evidence, and weaker in the corpus than in the request's own text.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import njit

from specctl.draft.gather import CANDIDATES

__all__ = ["MOST_MATCH", "chance_at", "chances"]

MOST_MATCH = 32
# Weights of: 1, log match, log(match)^2, log voters, log((votes + 1/2) / (others + 1/2)), unanimous,
# log match x log voters, log match x unanimous, log votes.
_OWN = (-1.972, 0.1275, -0.0633, 0.5304, 1.0771, -0.0112, 0.2165, 1.0402, -0.5711)
_CORPUS = (-2.551, -0.0727, 0.152, -0.375, 0.3766, -0.0108, 0.2719, 1.0417, 0.7792)


def chances() -> npt.NDArray[np.float32]:
    """float32[2, ...]: own or corpus, then match, votes and voters flattened, as ``chance_at`` reads them.

    The probability that a token comes true, given that everything before it did.
    """
    match, votes, voters = np.meshgrid(
        np.arange(MOST_MATCH + 1), np.arange(CANDIDATES + 1), np.arange(CANDIDATES + 1), indexing="ij"
    )
    log_match, log_voters = np.log(np.maximum(match, 1)), np.log(np.maximum(voters, 1))
    unanimous = votes == voters
    others = np.maximum(voters - votes, 0)
    features = (
        np.ones_like(log_match), log_match, log_match**2, log_voters, np.log((votes + 0.5) / (others + 0.5)),
        unanimous, log_match * log_voters, log_match * unanimous, np.log(np.maximum(votes, 1)),
    )  # fmt: skip
    logits = [sum(w * f for w, f in zip(weights, features, strict=True)) for weights in (_OWN, _CORPUS)]
    table: npt.NDArray[np.float32] = (1.0 / (1.0 + np.exp(-np.stack(logits)))).astype(np.float32)
    return table.reshape(2, -1)


@njit(cache=True, nogil=True)
def chance_at(chance, match, votes, voters):
    """chance: one row of ``chances``."""
    return chance[(min(match, MOST_MATCH) * (CANDIDATES + 1) + votes) * (CANDIDATES + 1) + voters]
