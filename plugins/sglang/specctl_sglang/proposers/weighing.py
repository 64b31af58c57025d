"""How many drafts a step of SGLang verifies, which has one width for all requests: the number that pays.

One more place for everyone brings the summed chances of the drafts that stand there, and costs one more
verified token of each request.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Weighing"]


@dataclass(frozen=True, slots=True)
class Weighing:
    min_token_prob: float
    """What a verified token costs, in emitted ones."""
    numbers: tuple[int, ...]
    """Of drafts, sorted, that are prepared."""

    def most(self, lengths: npt.NDArray[np.int32], probs: npt.NDArray[np.float32], requests: int) -> int:
        """One of the numbers; the smallest of those that bring as much.

        lengths  int32[n]
        probs    float32[n, k], that all of a draft up to there is accepted
        requests of the whole step, n at least: the others have no draft
        """
        has = np.arange(probs.shape[1]) < lengths[:, None]
        brought = np.where(has, probs, np.float32(0.0)).sum(axis=0, dtype=np.float64)
        net = np.zeros(max(self.numbers[-1], probs.shape[1]) + 1)
        net[1 : probs.shape[1] + 1] = brought
        net[1:] -= self.min_token_prob * requests
        worth = net.cumsum()
        return max(self.numbers, key=lambda number: float(worth[number]))
