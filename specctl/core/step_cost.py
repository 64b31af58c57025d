"""Seconds of a step by bucket and setting, from the engine's own steps.

Every bucket has one level, which follows what all of its steps have in common (contexts that grow, a busy
machine), and every measured setting an offset from it, which moves only where two settings ran in the same
interval. So an offset stays right while the level moves. Settings that never ran are predicted by a curve,
moved to agree with the measured ones nearby.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from specctl.contract.telemetry import TelemetryCell
from specctl.core.mixed_steps import MixedSteps
from specctl.core.position_cost import PositionCost, Spread
from specctl.core.prompt_cost import PromptCost
from specctl.core.prompt_steps import PromptSteps
from specctl.core.roofline import Roofline
from specctl.core.space import Bools, Floats, Space

__all__ = ["StepCost", "StepCostEstimate"]

STEPS_MIN = 2.0
"""Steps of a setting, discounted, before its own seconds count."""
STEPS_MAX = 200.0
"""An offset forgets beyond so many steps."""
LEVEL_STEPS = 8.0
"""Steps after which the level has followed by half."""
STALL_RATIO = 1.25
"""A step that alone raised the mean of its cell so much over the others stalled: something held it up."""
CLIP_LOG = 0.4
"""A setting's steps may be this much slower than expected at a time; more is a stall unless it repeats."""
UNSEEN_SIGMA, UNSEEN_SIGMA_BY_DISTANCE, UNSEEN_SIGMA_MAX = 0.08, 0.10, 0.5
NOISE_FLOOR = 0.01
PADDING_STEPS = 16.0
"""Steps after which the positions for a drafted one have followed by half."""
WIDTH_STEPS = 50.0
"""Steps after which the positions that an offset is of have followed by half."""
MOVED_MIN_RATIO = 0.3
"""Of its seconds, at least so much is left of a step with fewer positions."""
STEP_MIN_S, STEP_MAX_S = 1e-6, 1e4
"""Steps that are said to be shorter or longer tell nothing."""
MIXED_HALF_LIFE_S = 20.0


@dataclass(frozen=True)
class StepCostEstimate:
    """[bucket, setting] but for ``batch``, ``mixed_share`` [bucket]. NaN: not known.

    ``step_s``: seconds of a decode-only step; ``sigma``: standard error of its logarithm.
    ``decoding_s``: seconds that decoding takes of a usual step of the bucket, prompts' own left out;
    ``mixed_sigma``: standard error of their part in steps with prompts, in ``step_s``.
    ``mixed_share``: share of the bucket's steps that hold prompts, too.
    ``prompt_s``: seconds for each decode step that prompts take in steps of their own.
    """

    step_s: Floats
    sigma: Floats
    is_measured: Bools
    decoding_s: Floats
    mixed_sigma: Floats
    batch: Floats
    mixed_share: Floats
    verified: Floats
    prompt_s: Floats

    @cached_property
    def cycle_s(self) -> Floats:
        """Of a decode step and the prompts' steps that come with it."""
        return self.step_s + self.prompt_s

    @cached_property
    def step_rows(self) -> list[list[float]]:
        """``step_s`` by bucket, to be read one number at a time."""
        found: list[list[float]] = self.step_s.tolist()
        return found


class StepCost:
    """Of one server."""

    def __init__(self, space: Space) -> None:
        shape = len(space.buckets), len(space.settings)
        self._space = space
        self._log_s = np.zeros(shape)
        self._weight = np.zeros(shape)
        self._level = np.zeros(shape[0])
        self._batch = np.array([(low + high) / 2 for low, high in space.buckets])
        self._context = np.zeros(shape[0])
        self._mixed_steps = np.zeros(shape[0])
        self._steps = np.zeros(shape[0])
        self._padding = np.ones(shape[0])
        """Positions that are verified for a drafted one."""
        self._positions = PositionCost(shape[0])
        self._width = np.ones(shape)
        self._drafts = np.zeros(shape)
        """Positions and drafts of a request that the offsets are of."""
        self._noise = 0.05**2
        self._prompts = PromptCost()
        self._mixed = MixedSteps(space)
        self._prompt_steps = PromptSteps()
        self._least_token_s = np.inf
        """Of the plain steps that verified most in their time."""

    @property
    def prompt_token_s(self) -> float:
        """Seconds that a prompt token computes; 0: not known.

        At most what a token took of any step, with prompts or without. What is beyond comes with each step
        that holds prompts, however few: such steps run without full CUDA graphs.
        """
        return min(self._mixed.token_s(self._prompts.token_s), self._token_s_most)

    @property
    def _token_s_most(self) -> float:
        return min(self._prompts.least_token_s, self._least_token_s)

    def update(self, cells: Iterable[TelemetryCell], interval_s: float) -> None:
        """Take in an interval's steps. Those after a rest hold other work, and tell no seconds."""
        cells = tuple(cells)
        self._prompt_steps.add(cells, interval_s)
        by_bucket: dict[int, list[TelemetryCell]] = {}
        for cell in cells:
            bucket = self._space.bucket_index.get(cell.decode_batch_to)
            if bucket is not None and cell.steps and STEP_MIN_S < cell.step_s / cell.steps < STEP_MAX_S:
                by_bucket.setdefault(bucket, []).append(cell)
        for bucket, found in by_bucket.items():
            plain = [cell for cell in found if not cell.has_prefill and not cell.after_rest]
            self._place(bucket, found, interval_s)
            if plain:
                self._learn(bucket, plain)
        self._prompts.forget(interval_s)
        self._mixed.forget(interval_s)
        for bucket, found in by_bucket.items():
            for cell in found:
                if cell.has_prefill and cell.prefill_tokens:
                    self._prompts.add(cell)
            mixed = [cell for cell in found if cell.has_prefill and not cell.after_rest]
            if mixed:
                self._mixed.add(bucket, mixed, self._prompts.token_s)

    def estimate(self, drafted: Floats, emitted: Floats) -> StepCostEstimate:
        """
        Args:
            drafted, emitted: expected tokens of a request-step, by setting.
        """
        padding = np.where(self._space.topk > 1, 1.0, self._padding[:, None])
        verified = self._batch[:, None] * (1.0 + drafted * padding)
        own = self._own_s(drafted)
        is_known = self._weight >= STEPS_MIN
        self._least_token_s = float(np.min(own / verified, where=is_known, initial=np.inf))
        curve = self._curve(own, verified)
        log_s, sigma, is_measured = self._predicted(np.log(own), verified, np.log(curve))
        step_s = np.exp(log_s)
        share = self._mixed_steps / np.maximum(self._steps, 1e-9)
        # A verified token of a step that is full of prompts costs what a prompt token does; of one with a few
        # prompt tokens, what it costs without them. Which it is, is measured where two settings ran.
        in_mixed = np.maximum(verified * self.prompt_token_s, step_s - step_s[:, :1])
        beyond, beyond_sigma = self._mixed.beyond(in_mixed, verified)
        decoding_s = (1.0 - share)[:, None] * step_s + share[:, None] * (in_mixed + beyond)
        return StepCostEstimate(
            step_s, sigma, is_measured, decoding_s, share[:, None] * beyond_sigma / step_s,
            self._batch.copy(), share, verified, self._prompt_steps.seconds(self._batch, emitted),
        )  # fmt: skip

    def _place(self, bucket: int, cells: list[TelemetryCell], interval_s: float) -> None:
        """Where in its bucket the batch is, and how many of its steps hold prompts."""
        steps = sum(cell.steps for cell in cells)
        requests = sum(cell.request_steps for cell in cells)
        if not requests:
            return
        gain = steps / (steps + LEVEL_STEPS)
        self._batch[bucket] += gain * (requests / steps - self._batch[bucket])
        context = sum(cell.context_tokens for cell in cells)
        self._context[bucket] += gain * (context / steps - self._context[bucket])
        kept = 0.5 ** (interval_s / MIXED_HALF_LIFE_S)
        self._steps[bucket] = kept * self._steps[bucket] + steps
        mixed = sum(cell.steps for cell in cells if cell.has_prefill)
        self._mixed_steps[bucket] = kept * self._mixed_steps[bucket] + mixed

    def _own_s(self, drafted: Floats) -> Floats:
        """[bucket, setting]: measured seconds, moved to as many positions as are expected. A tree's are those
        that it had."""
        measured = np.exp(self._level[:, None] + self._log_s)
        more = self._width * ((1.0 + drafted)[None, :] / (1.0 + self._drafts) - 1.0)
        more[:, self._space.topk > 1] = 0.0
        moved = measured + self._positions.seconds()[:, None] * more
        found: Floats = np.maximum(moved, MOVED_MIN_RATIO * measured)
        return found

    def _learn(self, bucket: int, cells: list[TelemetryCell]) -> None:
        measured: dict[int, tuple[float, float]] = {}
        position_s = float(self._positions.seconds()[bucket])
        for cell in cells:
            self._positions.meet(bucket, cell)
            at = self._space.number_of(cell)
            if at is None:
                continue
            self._move_width(bucket, at, cell, position_s)
            more = self._width[bucket, at] - cell.verified_tokens / cell.steps
            usual_s = self._usual_s(bucket, cell, position_s)
            steps, seconds = measured.get(at, (0.0, 0.0))
            measured[at] = (
                steps + cell.steps,
                seconds + cell.steps * max(usual_s + position_s * more, MOVED_MIN_RATIO * usual_s),
            )
            self._learn_padding(bucket, cell)
        known = {at: one for at, one in measured.items() if self._weight[bucket, at] >= STEPS_MIN}
        if known:
            self._move_level(bucket, known)
        for at, (steps, seconds) in measured.items():
            log_s = np.log(seconds / steps)
            self._move_offset(bucket, at, steps, log_s, is_alone=len(measured) == 1)

    def _move_width(self, bucket: int, at: int, cell: TelemetryCell, position_s: float) -> None:
        """The positions that an offset is of are those of the newest steps; the offset goes along."""
        weight = float(self._weight[bucket, at])
        gain = cell.steps / (cell.steps + min(weight, WIDTH_STEPS))
        more = gain * (cell.verified_tokens / cell.steps - self._width[bucket, at])
        if weight:
            own_s = math.exp(self._level[bucket] + self._log_s[bucket, at])
            self._log_s[bucket, at] += math.log(max(1.0 + position_s * more / own_s, MOVED_MIN_RATIO))
        self._width[bucket, at] += more
        drafts = sum(cell.drafted_at) / max(cell.request_steps, 1)
        self._drafts[bucket, at] += gain * (drafts - self._drafts[bucket, at])

    def _move_level(self, bucket: int, known: dict[int, tuple[float, float]]) -> None:
        weights = {at: steps * min(self._weight[bucket, at], STEPS_MAX) for at, (steps, _) in known.items()}
        misses = {
            at: np.log(seconds / steps) - self._level[bucket] - self._log_s[bucket, at]
            for at, (steps, seconds) in known.items()
        }
        miss = sum(weights[at] * misses[at] for at in known) / sum(weights.values())
        steps = sum(steps for steps, _ in known.values())
        self._level[bucket] += steps / (steps + LEVEL_STEPS) * miss

    def _move_offset(self, bucket: int, at: int, steps: float, log_s: float, *, is_alone: bool) -> None:
        """``is_alone``: no other setting ran, so that what is missing is the level's."""
        weight = self._weight[bucket, at]
        own = log_s - self._level[bucket]
        if not weight:
            self._log_s[bucket, at] = own
        elif weight < STEPS_MIN or not is_alone:
            miss = own - self._log_s[bucket, at]
            # The first step of a setting may hold a compilation, which the next one shows.
            is_first_slow = weight < STEPS_MIN and miss < -CLIP_LOG
            gain = 1.0 if is_first_slow else steps / (steps + min(weight, STEPS_MAX))
            self._log_s[bucket, at] += gain * min(miss, CLIP_LOG)
        self._weight[bucket, at] = min(weight + steps, STEPS_MAX)

    def _usual_s(self, bucket: int, cell: TelemetryCell, position_s: float) -> float:
        """Mean seconds of a step, a stall left out; learns of those without how they scatter, and why.

        Were one step longer and all others alike, the others' seconds would follow from the sums of seconds
        and of their squares. What more positions explain is no noise.
        """
        mean = cell.step_s / cell.steps
        if cell.steps == 1:
            return mean
        spread = Spread.of(cell)
        variance = spread.unexplained(position_s) / cell.steps
        others = mean - math.sqrt(variance / (cell.steps - 1))
        if 0.0 < others < mean / STALL_RATIO:
            return others
        self._positions.add(bucket, cell, spread)
        noise = min(variance / (mean * mean), 1.0)
        self._noise += cell.steps / (cell.steps + 200.0) * (noise - self._noise)
        return mean

    def _learn_padding(self, bucket: int, cell: TelemetryCell) -> None:
        """An engine may score more positions than it drafted: where requests share one width, more of them
        the more requests there are."""
        drafted = sum(cell.drafted_at)
        if drafted and cell.tree_topk == 1:
            found = (cell.verified_tokens - cell.request_steps) / drafted
            gain = cell.steps / (cell.steps + PADDING_STEPS)
            self._padding[bucket] += gain * (found - self._padding[bucket])

    def _curve(self, own: Floats, verified: Floats) -> Floats:
        rows, columns = (self._weight >= STEPS_MIN).nonzero()
        if not rows.size:
            floor_s = self._prompts.floor_s(self._context[:, None])
            return np.where(floor_s > 0, np.maximum(floor_s, self.prompt_token_s * verified), np.nan)
        seconds = own[rows, columns]
        fitted = Roofline.fitted(self._batch[rows], verified[rows, columns], seconds, self.prompt_token_s)
        return fitted.seconds(self._batch[:, None], verified)

    def _predicted(self, own: Floats, verified: Floats, log_curve: Floats) -> tuple[Floats, Floats, Bools]:
        """Log seconds and their standard errors: what a setting's own steps say and what the curve says, once
        it is moved to the other measured settings nearby, each by its precision."""
        is_measured = self._weight >= STEPS_MIN
        own_var = self._noise / np.maximum(self._weight, 1e-9) + NOISE_FLOOR**2
        near, near_var = log_curve.copy(), np.full(log_curve.shape, UNSEEN_SIGMA_MAX**2)
        rows, columns = np.nonzero(is_measured)
        if rows.size:
            log_v = np.log(verified)
            miss = own[rows, columns] - log_curve[rows, columns]
            distance = np.abs(log_v[:, :, None] - log_v[rows, columns][None, None, :])
            distance += 1.0 * (np.arange(len(log_v))[:, None, None] != rows[None, None, :])
            distance[rows, columns, np.arange(rows.size)] = np.inf
            weight = np.minimum(self._weight[rows, columns], 20.0) * np.exp(-3.0 * distance)
            near += (weight * miss).sum(axis=2) / np.maximum(weight.sum(axis=2), 1e-12)
            sigma = UNSEEN_SIGMA + UNSEEN_SIGMA_BY_DISTANCE * distance.min(axis=2)
            near_var = np.minimum(sigma, UNSEEN_SIGMA_MAX) ** 2
        share = np.where(is_measured, near_var / (near_var + own_var), 0.0)
        log_s = np.where(is_measured, near + share * (own - near), near)
        variance = np.where(is_measured, share * own_var, near_var)
        return log_s, np.sqrt(variance), is_measured
