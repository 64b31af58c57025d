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


class Roofline(NamedTuple):
    floor_s: float
    request_s: float
    token_s: float
    bound_s: float

    @classmethod
    def fitted(cls, batch: Floats, verified: Floats, seconds: Floats, bound_s: float) -> Roofline:
        """Least squares of relative misses with coefficients that are not negative. Arrays of one length."""
        columns = np.stack([np.ones_like(batch), batch, verified], axis=1) / seconds[:, None]
        best, best_miss = np.array([seconds.mean(), 0.0, 0.0]), np.inf
        for size in (1, 2, 3):
            for chosen in combinations(range(3), size):
                part = columns[:, chosen]
                if len(seconds) < size:
                    continue
                found = np.linalg.lstsq(part, np.ones(len(seconds)), rcond=None)[0]
                miss = float(((part @ found - 1.0) ** 2).sum())
                if (found >= 0).all() and miss < best_miss - 1e-12:
                    best, best_miss = np.zeros(3), miss
                    best[list(chosen)] = found
        floor_s, request_s, token_s = best.tolist()
        return cls(floor_s, request_s, token_s, bound_s)

    def seconds(self, batch: Floats, verified: Floats) -> Floats:
        waits = self.floor_s + self.request_s * batch + self.token_s * verified
        found: Floats = np.maximum(waits, self.bound_s * verified)
        return found
