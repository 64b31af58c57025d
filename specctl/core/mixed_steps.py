"""What a setting adds to steps that hold prompts beside decoding requests, as measured.

Such steps run without full CUDA graphs: on a GPU they wait for their launches, and drafts hardly lengthen
them. Elsewhere drafts add what they add to any step. The steps of two settings tell which it is.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from specctl.contract.telemetry import TelemetryCell
from specctl.core.prompt_cost import HALF_LIFE_S
from specctl.core.space import Floats, Space

__all__ = ["MixedSteps"]

MISS_RATIO = 0.5
"""Of what one setting is expected to take more than another: so far may it be wrong."""
PROMPTS_MISS_RATIO = 0.2
"""Of what more prompt tokens are expected to take: so far may it be wrong."""
NOISE_MIN = 0.01**2
"""Of the variance below: steps never scatter less."""
STEPS_MAX = 200.0
"""A comparison forgets beyond so many steps."""
NOISE_STEPS = 200.0
"""Steps after which the scatter of steps has followed by half."""
MEAN_STEPS = 50.0
"""Steps after which a mean has followed by half."""
SLOPE_PRIOR_STEPS = 3.0
"""Steps whose prompts are as far from the mean as the mean is large."""


class MixedSteps:
    """Of one server. Only steps of the same interval are compared: others met other prompts."""

    def __init__(self, space: Space) -> None:
        shape = len(space.buckets), len(space.settings)
        self._space = space
        self._more_s = np.zeros(shape)
        """Of a step without its prompt tokens, against the other settings of the bucket."""
        self._compared = np.zeros(shape)
        """Steps beside another setting's of the same interval."""
        self._steps = np.zeros(shape)
        self._tokens, self._seconds = np.zeros(shape), np.zeros(shape)
        """Prompt tokens and seconds of a step, means."""
        self._noise = 0.2**2
        """Variance of a step's seconds, in squares of their mean."""
        self._square = self._product = 0.0

    def add(self, bucket: int, cells: Iterable[TelemetryCell], token_s: float) -> None:
        """An interval's steps with prompts. ``token_s``: what a prompt token is expected to take."""
        measured: dict[int, tuple[int, float, float]] = {}
        for cell in cells:
            at = self._space.number_of(cell)
            if at is not None:
                self._learn_means(bucket, at, cell)
                self._learn_noise(cell)
                measured[at] = cell.steps, cell.step_s / cell.steps, cell.prefill_tokens / cell.steps
        if len(measured) > 1:
            self._compare(bucket, measured, self.token_s(token_s))

    def forget(self, interval_s: float) -> None:
        kept = 0.5 ** (interval_s / HALF_LIFE_S)
        self._square *= kept
        self._product *= kept

    def beyond(self, expected: Floats, verified: Floats) -> tuple[Floats, Floats]:
        """[bucket, setting]: seconds that decoding takes of such a step beyond the expected ones, against
        the setting that was compared most, and their standard error. Between two that ran they are
        interpolated by verified positions.

        Args:
            expected, verified: [bucket, setting], seconds of decoding, and positions.
        """
        found, sigma = np.zeros_like(expected), np.zeros_like(expected)
        for bucket in np.flatnonzero(self._compared.any(axis=1)).tolist():
            compared = self._compared[bucket]
            known, own = np.flatnonzero(compared), compared.argmax()
            more = expected[bucket] - expected[bucket, own]
            miss = self._more_s[bucket] - self._more_s[bucket, own] - more
            may_miss = (MISS_RATIO * more) ** 2
            noise = self._noise * self._seconds[bucket, own] ** 2 / np.maximum(compared, 1e-9)
            share = may_miss / (may_miss + noise)
            order = verified[bucket, known].argsort()
            beyond = (share * miss)[known][order]
            found[bucket] = np.interp(verified[bucket], verified[bucket, known][order], beyond)
            sigma[bucket] = np.sqrt(share * noise)
        return found, sigma

    def _compare(self, bucket: int, measured: dict[int, tuple[int, float, float]], token_s: float) -> None:
        """``measured``: by setting, steps, seconds and prompt tokens of one."""
        every = sum(steps for steps, _, _ in measured.values())
        own = max(measured, key=lambda at: measured[at][0])
        left_s = {at: step_s - token_s * tokens for at, (_, step_s, tokens) in measured.items()}
        # What all of the interval's steps have in common, by those that were compared before.
        placed = [at for at in measured if self._compared[bucket, at]] or [own]
        weights = {at: measured[at][0] * max(self._compared[bucket, at], 1.0) for at in placed}
        common = sum(weights[at] * (left_s[at] - self._more_s[bucket, at]) for at in placed)
        common /= sum(weights.values())
        usual_tokens = sum(steps * tokens for steps, _, tokens in measured.values()) / every
        for at, (steps, step_s, tokens) in measured.items():
            # Steps with many more prompt tokens tell less.
            apart_s = PROMPTS_MISS_RATIO * token_s * (tokens - usual_tokens)
            off = apart_s * apart_s / (self._noise * step_s * step_s)
            beside = 1.0 / (every / (steps * (every - steps)) + off)
            weight = self._compared[bucket, at]
            miss = left_s[at] - common - self._more_s[bucket, at]
            self._more_s[bucket, at] += beside / (beside + weight) * miss
            self._compared[bucket, at] = min(weight + beside, STEPS_MAX)

    def token_s(self, expected_s: float) -> float:
        """Seconds of a prompt token in steps that have some in any case."""
        prior = SLOPE_PRIOR_STEPS * float((self._tokens**2).max())
        product, square = self._product + prior * expected_s, self._square + prior
        return max(product, 0.0) / square if square > 0.0 else 0.0

    def _learn_means(self, bucket: int, at: int, cell: TelemetryCell) -> None:
        """And least squares about them, drawn to what is expected where prompts hardly differ."""
        gain = cell.steps / (cell.steps + self._steps[bucket, at])
        self._steps[bucket, at] = min(self._steps[bucket, at] + cell.steps, MEAN_STEPS)
        more = cell.prefill_tokens / cell.steps - self._tokens[bucket, at]
        more_s = cell.step_s / cell.steps - self._seconds[bucket, at]
        self._tokens[bucket, at] += gain * more
        self._seconds[bucket, at] += gain * more_s
        self._square += cell.steps * (1.0 - gain) * more * more
        self._product += cell.steps * (1.0 - gain) * more * more_s

    def _learn_noise(self, cell: TelemetryCell) -> None:
        if cell.steps > 1:
            mean = cell.step_s / cell.steps
            variance = max(cell.step_s_squared / cell.steps - mean * mean, 0.0)
            gain = cell.steps / (cell.steps + NOISE_STEPS)
            found = min(max(variance / (mean * mean), NOISE_MIN), 1.0)
            self._noise += gain * (found - self._noise)
