"""The simplest curve of step seconds: a floor, requests and verified tokens, never under the compute bound.

    seconds = max(floor_s + request_s x decoding requests + token_s x positions, bound_s x positions)

The first part is a step that waits for memory, the second one that computes (Williams, Waterman and
Patterson, "Roofline", CACM 52, 2009). The bound is what prompt tokens
cost, which are computed many at a time.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np

from specctl.core.space import Floats

__all__ = ["Roofline"]

GAIN_MIN = 1e-12
"""A fit with one more column must be better by this."""
RIDGE = 1e-13
"""Of columns of unit length. Columns that are alike share what one of them alone would have."""
_CHOSEN = np.array(
    [[i in chosen for i in range(3)] for size in (1, 2, 3) for chosen in combinations(range(3), size)],
    np.float64,
)
_SIZES = [int(size) for size in _CHOSEN.sum(axis=1)]
_PAIRS = _CHOSEN[:, :, None] * _CHOSEN[:, None, :]
_DIAGONALS = np.eye(3) * (RIDGE + 1.0 - _CHOSEN[:, :, None])


class Roofline(NamedTuple):
    floor_s: float
    request_s: float
    token_s: float
    bound_s: float

    @classmethod
    def fitted(cls, batch: Floats, verified: Floats, seconds: Floats, bound_s: float) -> Roofline:
        """Least squares of relative misses with coefficients that are not negative. Arrays of one length."""
        columns = np.array([np.ones_like(batch), batch, verified]) / seconds
        scale = np.sqrt((columns * columns).sum(axis=1))
        columns /= scale[:, None]
        # All choices of columns at once, by their normal equations; what is not chosen becomes 0.
        square = (columns @ columns.T) * _PAIRS + _DIAGONALS
        found = np.linalg.solve(square, (_CHOSEN * columns.sum(axis=1))[:, :, None])[:, :, 0]
        misses = ((found @ columns - 1.0) ** 2).sum(axis=1).tolist()
        best, best_miss = [float(seconds.mean() * scale[0]), 0.0, 0.0], np.inf
        for one, miss, size in zip(found.tolist(), misses, _SIZES, strict=True):
            if size <= len(seconds) and min(one) >= 0.0 and miss < best_miss - GAIN_MIN:
                best, best_miss = one, miss
        floor_s, request_s, token_s = (np.array(best) / scale).tolist()
        return cls(floor_s, request_s, token_s, bound_s)

    def seconds(self, batch: Floats, verified: Floats) -> Floats:
        waits = self.floor_s + self.request_s * batch + self.token_s * verified
        found: Floats = np.maximum(waits, self.bound_s * verified)
        return found
