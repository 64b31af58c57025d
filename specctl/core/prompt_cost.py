"""What prompts add to a step, from the steps that hold both prompts and decoding requests."""

from __future__ import annotations

import numpy as np

from specctl.contract.telemetry import TelemetryCell
from specctl.core.space import Floats

__all__ = ["PromptCost", "least_squares"]

HALF_LIFE_S = 60.0
RIDGE_TOKENS = 150.0
"""Tokens whose computation takes as long as reading the weights once: a GPU's peak bf16 operations over its
bytes per second, 295 of an H100 and 206 of an H200 by their data sheets, less what kernels reach."""
CONTEXT_RATIO = 0.001
"""Seconds of a context token over those of a computed one: an 8B model with grouped-query attention reads
128 KiB of keys and values where it computes 16 Gflop."""
CONTEXT_PRIOR_WEIGHT = 0.2


class PromptCost:
    """Of steps full of prompts, which compute: seconds = token_s x all tokens + context_s x context."""

    def __init__(self) -> None:
        self._square = np.zeros((2, 2))
        self._seconds = np.zeros(2)
        self.least_token_s = np.inf
        """Of the steps that computed most tokens in their time: a token takes no longer."""

    def forget(self, interval_s: float) -> None:
        kept = 0.5 ** (interval_s / HALF_LIFE_S)
        self._square *= kept
        self._seconds *= kept
        self.least_token_s /= kept

    def add(self, cell: TelemetryCell) -> None:
        """Steps with prompts."""
        tokens = cell.prefill_tokens + cell.verified_tokens
        self.least_token_s = min(self.least_token_s, cell.step_s / tokens)
        row = np.array([tokens, cell.context_tokens]) / cell.steps
        self._square += cell.steps * np.outer(row, row)
        self._seconds += row * cell.step_s

    @property
    def token_s(self) -> float:
        """0: not known."""
        return self._line()[0]

    def floor_s(self, context: Floats) -> Floats:
        """Least seconds of a step with so many tokens of context, where none without prompts was seen."""
        token_s, context_s = self._line()
        return RIDGE_TOKENS * token_s + context_s * context

    def _line(self) -> tuple[float, float]:
        """Seconds of a computed token and of one of context; 0, 0: nothing was seen."""
        return least_squares(self._square, self._seconds, CONTEXT_RATIO, CONTEXT_PRIOR_WEIGHT)


def least_squares(square: Floats, seconds: Floats, ratio: float, prior_weight: float) -> tuple[float, float]:
    """Seconds of two things that steps held, neither negative; 0, 0: nothing was seen.

    Args:
        square, seconds: sums of x x^T and of x times seconds; x: how much of both a step held.
        ratio: of the second's seconds over the first's; the line is drawn to it where steps hardly tell.
        prior_weight: of that, against a step's.
    """
    (xx, xc), (_, cc) = square.tolist()
    xy, cy = seconds.tolist()
    if xx <= 0:
        return 0.0, 0.0
    weight = prior_weight * cc
    xx, xc, cc = xx + weight * ratio**2, xc - weight * ratio, cc + weight
    determinant = xx * cc - xc * xc
    if determinant > 0:
        first, second = (cc * xy - xc * cy) / determinant, (xx * cy - xc * xy) / determinant
        if first > 0 and second >= 0:
            return first, second
    return xy / xx, 0.0
