"""What the HTTP server takes of a step, where it is slower than the engine. Pure.

An engine's front end handles what a request emitted in a step as one piece, however many tokens it has: it
makes text of it and writes it to the client. That takes 50 to 120 us of one core, and 256 streams more than a
step of many engines. Pieces then wait between the two, and clients get their tokens at the front end's pace:
as many pieces a second under every setting. The seconds of steps do not show that; pieces that wait do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from specctl.contract.telemetry import TelemetryCell
from specctl.core.messages import Event
from specctl.core.space import Floats, Space
from specctl.core.step_cost import StepCostEstimate
from specctl.types import Observation

__all__ = ["FrontEnd"]

BEHIND_STEPS = 16
"""While the pieces of so many steps wait at both ends of an interval, it is busy all through it."""
GAIN = 0.5
"""Of an interval's measurement."""
HALF_LIFE_S = 600.0
"""Clients may turn to answers that cost less: not streamed, or in larger pieces."""
PROMPT_STEPS = 100.0
"""Steps after which what prompts take of a step is followed by half."""
SAID_AFTER_S, OVER_AFTER_S = 10.0, 60.0


class FrontEnd:
    """Of one server. ``piece_s``: seconds of what one request emitted in one step; 0: not known."""

    def __init__(self, space: Space) -> None:
        self.piece_s = 0.0
        self._space = space
        self._waiting = 0
        self._batch = 1.0
        self._decoding_s: Floats | None = None
        """By bucket and setting, as last estimated."""
        self._prompts_s = 0.0
        """What else a step takes in the mean: the prompts."""
        self._since_s = 0.0
        """For how long it has been behind, or not behind."""
        self._is_said = False

    @property
    def is_behind(self) -> bool:
        return self._waiting >= BEHIND_STEPS * self._batch

    def update(self, observation: Observation) -> Event | None:
        """Take in a poll, once; what there is to say."""
        before, was_behind = self._waiting, self.is_behind
        self._waiting = observation.front_end_waiting_pieces or 0
        cells, interval_s = observation.cells, observation.interval_s
        if observation.front_end_waiting_pieces is None or cells is None or not interval_s:
            return None
        self._count(cells)
        pieces = sum(cell.request_steps for cell in cells) + before - self._waiting
        self.piece_s *= 0.5 ** (interval_s / HALF_LIFE_S)
        if pieces > 0:
            self._learn(interval_s / pieces, was_busy=was_behind and self.is_behind)
        self._since_s = interval_s + (self._since_s if was_behind is self.is_behind else 0.0)
        return self._news(observation.target)

    def paced(self, cost: StepCostEstimate) -> StepCostEstimate:
        """Seconds as the clients see them: no step, with its prompts, is shorter than its pieces take."""
        self._decoding_s = cost.decoding_s
        if not self.piece_s:
            return cost
        least_s = (self.piece_s * cost.batch - self._prompts_s)[:, None]
        return replace(
            cost,
            step_s=np.maximum(cost.step_s, least_s),
            decoding_s=np.maximum(cost.decoding_s, least_s),
        )

    def _count(self, cells: Sequence[TelemetryCell]) -> None:
        decoding = [cell for cell in cells if cell.request_steps]
        steps = sum(cell.steps for cell in decoding)
        if not steps:
            return
        self._batch = sum(cell.request_steps for cell in decoding) / steps
        known_s = sum(cell.steps * self._known_s(cell) for cell in decoding)
        if math.isfinite(known_s):
            of_prompts_s = max(sum(cell.step_s for cell in cells) - known_s, 0.0) / steps
            self._prompts_s += steps / (steps + PROMPT_STEPS) * (of_prompts_s - self._prompts_s)

    def _known_s(self, cell: TelemetryCell) -> float:
        """What decoding takes of a step of this cell; NaN: not known."""
        bucket, at = self._space.bucket_index.get(cell.decode_batch_to), self._space.number_of(cell)
        if self._decoding_s is None or bucket is None or at is None:
            return math.nan
        return float(self._decoding_s[bucket, at])

    def _learn(self, at_most_s: float, *, was_busy: bool) -> None:
        """``at_most_s``: of a piece, as all of them took no longer than the interval."""
        if not self.piece_s:
            self.piece_s = at_most_s if was_busy else 0.0
        elif was_busy:
            self.piece_s += GAIN * (at_most_s - self.piece_s)
        else:
            self.piece_s = min(self.piece_s, at_most_s)

    def _news(self, target: str) -> Event | None:
        if self.is_behind is self._is_said:
            return None
        if self._since_s < (SAID_AFTER_S if self.is_behind else OVER_AFTER_S):
            return None
        self._is_said = self.is_behind
        record = {"waiting_pieces": self._waiting, "piece_us": round(1e6 * self.piece_s, 1)}
        if not self.is_behind:
            words = "the HTTP server keeps up with the engine again"
            return Event("front_end_caught_up", target, words, record)
        words = (
            f"the HTTP server is behind the engine by {self._waiting / self._batch:.0f} steps: it takes "
            f"{1e6 * self.piece_s:.0f} us for what a request emits in a step; more of its processes "
            "(--api-server-count), fewer streamed pieces (--stream-interval) or drafts relieve it"
        )
        return Event("front_end_behind", target, words, record, is_warning=True)
