"""What prompts take that run in steps of their own, as in SGLang. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from specctl.contract.telemetry import TelemetryCell
from specctl.core.prompt_cost import HALF_LIFE_S, RIDGE_TOKENS, least_squares
from specctl.core.space import Floats

__all__ = ["PromptSteps", "with_prompts"]

SHARE_HALF_LIFE_S = 20.0
SHARE_MAX = 0.95
"""Of decode steps that a step of prompts follows: long prompts take several."""
STALL_RATIO = 2.0
"""Steps that took so many times what was expected count as that many."""
PRIOR_WEIGHT = 0.02


def with_prompts(cells: Sequence[TelemetryCell]) -> Sequence[TelemetryCell]:
    """An interval's cells of decoding, each step with its part of what prompts took in steps of their own."""
    decoding = [cell for cell in cells if cell.decode_batch_to]
    prompt_s = sum(cell.step_s for cell in cells if not cell.decode_batch_to)
    steps = sum(cell.steps for cell in decoding)
    if not prompt_s or not steps:
        return decoding
    return [
        cell.model_copy(update={"step_s": cell.step_s + prompt_s * cell.steps / steps}) for cell in decoding
    ]


class PromptSteps:
    """Their seconds for each decode step: seconds of a step = step_s + token_s x prompt tokens.

    Every answer that ends makes room for one prompt, and one step takes all prompts that wait. So the more
    tokens a decode step emits, the more prompts share ``step_s``: drafts are charged less of it.
    """

    def __init__(self) -> None:
        self._square = np.zeros((2, 2))
        self._seconds = np.zeros(2)
        self._decode_steps = self._requests = self._emitted = 0.0
        self._prompt_steps = self._prompt_tokens = 0.0

    def add(self, cells: Iterable[TelemetryCell], interval_s: float) -> None:
        """Take in an interval's steps."""
        self._square *= 0.5 ** (interval_s / HALF_LIFE_S)
        self._seconds *= 0.5 ** (interval_s / HALF_LIFE_S)
        kept = 0.5 ** (interval_s / SHARE_HALF_LIFE_S)
        self._decode_steps *= kept
        self._requests *= kept
        self._emitted *= kept
        self._prompt_steps *= kept
        self._prompt_tokens *= kept
        for cell in cells:
            if cell.decode_batch_to:
                self._decode_steps += cell.steps
                self._requests += cell.request_steps
                self._emitted += cell.emitted_tokens
            elif cell.steps and cell.prefill_tokens:
                self._learn(cell)

    def seconds(self, batch: Floats, emitted: Floats) -> Floats:
        """[bucket, setting]: of prompts' steps for each decode step; 0: none were seen.

        Args:
            batch: [bucket], decoding requests.
            emitted: [setting], tokens of a request in a decode step.
        """
        tokens = batch[:, None] * emitted[None, :]
        if not (self._prompt_steps and self._requests and self._emitted):
            return np.zeros_like(tokens)
        share = min(self._prompt_steps / self._decode_steps, SHARE_MAX)
        usual_batch = max(self._requests / self._decode_steps, 1.0)
        ended = 1.0 - (1.0 - share) ** (1.0 / usual_batch)
        # The chance of a request to end, for each token that it emits.
        by_token = ended * self._requests / self._emitted
        none_ended = (1.0 - np.minimum(by_token * emitted, 1.0))[None, :] ** batch[:, None]
        token_s, step_s = self._line()
        found: Floats = step_s * (1.0 - none_ended)
        return found + token_s * self._prompt_tokens / self._emitted * tokens

    def _learn(self, cell: TelemetryCell) -> None:
        self._prompt_steps += cell.steps
        self._prompt_tokens += cell.prefill_tokens
        row = np.array([cell.prefill_tokens / cell.steps, 1.0])
        expected = float(row @ self._line())
        seconds = cell.step_s / cell.steps
        if expected > 0:
            seconds = min(seconds, STALL_RATIO * expected)
        self._square += cell.steps * np.outer(row, row)
        self._seconds += cell.steps * row * seconds

    def _line(self) -> tuple[float, float]:
        """Seconds of a token and of a step; drawn to reading the weights once for each step."""
        return least_squares(self._square, self._seconds, RIDGE_TOKENS, PRIOR_WEIGHT)
