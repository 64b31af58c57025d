"""Seconds of a step from an engine profile, corrected by what the server's own steps take.

The profile is the prior. Measured over predicted seconds are kept for the server, for each decode-batch
bucket and for each cell, each drawn towards the one before by ``PRIOR_STEPS`` steps (a gamma prior on a rate;
Gelman et al., "Bayesian Data Analysis", section 2.6). A profile that the steps contradict is put aside, and
the costs are learned as without one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Self

from specctl.estimate.cost_curve import CostCurve
from specctl.estimate.step_cost import DiscountedStepCost
from specctl.types import CellDelta, Observation, StepCostEstimate

__all__ = ["ProfiledStepCost"]

HALF_LIFE_S = 60.0
PRIOR_STEPS = 30.0
STEPS_MIN = 5.0
# From here on the profile has stood the test on this server, for settings without steps as well.
SERVER_STEPS_MIN = 50.0
# Steps without prompts that a bucket is thought to have had: a burst of prompts at the start is no rule.
PRIOR_STEPS_ALONE = 100.0
# What a stall (another process, a compile) may pull a mean by.
OUTLIER_RATIO = 3.0
# Of single steps, as a share of their seconds, at least.
SCATTER_MIN_RATIO = 0.01
# A profile is refuted by so many steps whose cells' levels scatter by this much, or are so many times off.
REFUTED_STEPS = 200.0
REFUTED_SIGMA = 0.35
REFUTED_RATIO = 3.0

# Bucket's upper end, and whether anything was drafted: how the number of drafts counts is the curve's matter.
_Key = tuple[int, bool]


class _Sums(NamedTuple):
    """Discounted, of decode-only steps: how many, their seconds, and the seconds that were predicted."""

    steps: float = 0.0
    measured_s: float = 0.0
    predicted_s: float = 0.0

    def plus(self, other: _Sums) -> _Sums:
        return _Sums(
            self.steps + other.steps,
            self.measured_s + other.measured_s,
            self.predicted_s + other.predicted_s,
        )

    def scaled(self, factor: float) -> _Sums:
        return _Sums(self.steps * factor, self.measured_s * factor, self.predicted_s * factor)

    def ratio(self, prior: float) -> float:
        """Measured over predicted, drawn towards ``prior``."""
        if self.steps <= 0:
            return prior
        mean_s = self.predicted_s / self.steps
        return (self.measured_s + PRIOR_STEPS * prior * mean_s) / (self.predicted_s + PRIOR_STEPS * mean_s)


class _Load(NamedTuple):
    """Discounted, of a bucket's steps: with and without prompts, and the tokens that go with them."""

    steps: float = 0.0
    mixed_steps: float = 0.0
    prefill_tokens: float = 0.0
    request_steps: float = 0.0
    context_tokens: float = 0.0

    def plus(self, cell: CellDelta) -> _Load:
        return _Load(
            self.steps + cell.steps,
            self.mixed_steps + (cell.steps if cell.has_prefill else 0),
            self.prefill_tokens + cell.prefill_tokens,
            self.request_steps + cell.request_steps,
            self.context_tokens + cell.context_tokens,
        )

    @property
    def context_each(self) -> float:
        """Tokens of context of a request: as long as any step is remembered, however faintly."""
        return self.context_tokens / self.request_steps if self.request_steps else 0.0

    def scaled(self, factor: float) -> _Load:
        return _Load(
            self.steps * factor,
            self.mixed_steps * factor,
            self.prefill_tokens * factor,
            self.request_steps * factor,
            self.context_tokens * factor,
        )


_NOTHING, _NO_LOAD = _Sums(), _Load()


@dataclass(frozen=True, slots=True)
class ProfiledStepCost:
    """``cells``: by bucket's upper end and whether anything was drafted; ``loads``: by bucket.
    ``knows_off``: the curve tells steps with drafts from steps without."""

    curve: CostCurve
    cells: Mapping[_Key, _Sums] = field(default_factory=dict)
    loads: Mapping[int, _Load] = field(default_factory=dict)
    ratios: Mapping[int, float] = field(default_factory=dict)
    server_ratio: float = 1.0
    server_steps: float = 0.0
    knows_off: bool = True
    is_refuted: bool = False
    learned: DiscountedStepCost = field(default_factory=DiscountedStepCost)

    def updated(self, observation: Observation) -> Self:
        learned = self.learned.updated(observation)
        if observation.cells is None or observation.interval_s is None:
            return self
        fresh = [cell for cell in observation.cells if cell.request_steps and cell.step_s > 0]
        if not fresh:
            return replace(self, learned=learned)
        factor = 0.5 ** (observation.interval_s / HALF_LIFE_S)
        cells = {key: sums.scaled(factor) for key, sums in self.cells.items() if sums.steps * factor >= 0.1}
        loads = _with_loads({upper: load.scaled(factor) for upper, load in self.loads.items()}, fresh)
        return self._corrected(cells, fresh, loads, learned)

    def on(self, curve: CostCurve, rows: Sequence[CellDelta]) -> Self:
        """With another curve; what it is corrected by is told by ``rows``."""
        loads = self.loads or _with_loads({}, rows)
        moved = replace(self, curve=curve, server_ratio=1.0, is_refuted=False)
        return moved._corrected({}, rows, loads, self.learned)

    def _corrected(
        self,
        known: Mapping[_Key, _Sums],
        rows: Sequence[CellDelta],
        loads: Mapping[int, _Load],
        learned: DiscountedStepCost,
    ) -> Self:
        """By ``rows`` on top of ``known``; what contradicts the curve once puts it aside."""
        cells = dict(known)
        for row in rows:
            if not row.has_prefill:
                key = (row.decode_batch_to, row.num_speculative_tokens > 0)
                cells[key] = cells.get(key, _NOTHING).plus(self._sums_of(row))
        server, ratios, is_refuted = _levels(cells)
        return type(self)(
            curve=self.curve,
            cells=cells,
            loads=loads,
            ratios=ratios,
            server_ratio=server.ratio(1.0),
            server_steps=server.steps,
            knows_off=self.knows_off,
            is_refuted=self.is_refuted or is_refuted,
            learned=learned,
        )

    def is_bucket_measured(self, bucket_to: int) -> bool:
        """The profile speaks for every bucket up to the largest batch that it was measured with."""
        if self.is_refuted:
            return self.learned.is_bucket_measured(bucket_to)
        most = self.curve.decode_batch_most
        return most is None or bucket_to <= 2 * most

    def step_cost(
        self, bucket_to: int, decode_batch: float, num_speculative_tokens: int, verified_tokens: float
    ) -> StepCostEstimate:
        wanted = {num_speculative_tokens: verified_tokens}
        return self.step_costs(bucket_to, decode_batch, wanted)[num_speculative_tokens]

    def step_costs(
        self, bucket_to: int, decode_batch: float, verified_tokens: Mapping[int, float]
    ) -> Mapping[int, StepCostEstimate]:
        if self.is_refuted:
            return self.learned.step_costs(bucket_to, decode_batch, verified_tokens)
        load = self.loads.get(bucket_to, _NO_LOAD)
        context = decode_batch * load.context_each
        shared_s = self.curve.shared_s(decode_batch, context)
        off_s = self.curve.alone_s(decode_batch, 0, decode_batch, shared_s)
        level = self.ratios.get(bucket_to, self.server_ratio)
        # By whether anything is drafted: what all settings of a kind share.
        cells = [self.cells.get((bucket_to, is_drafting), _NOTHING) for is_drafting in (False, True)]
        ratios = [cell.ratio(level) for cell in cells]
        is_tried = self.server_steps >= SERVER_STEPS_MIN
        known = [
            (is_tried and self.knows_off) or cells[0].steps >= STEPS_MIN,
            is_tried or cells[1].steps >= STEPS_MIN,
        ]
        miss, scatter = self.curve.miss_ratio, max(self.curve.jitter_ratio, SCATTER_MIN_RATIO)
        alone_s = self.curve.alone_each_s(decode_batch, verified_tokens, shared_s)
        decoding_s = alone_s
        if load.mixed_steps:
            decoding_s = self._decoding_s(load, alone_s, decode_batch, verified_tokens, context)
        costs = {}
        for k, predicted_s, told_s in zip(verified_tokens, alone_s, decoding_s, strict=True):
            is_drafting = k > 0
            ratio = ratios[is_drafting]
            # Of predicted seconds against those of the bucket's other settings. A miss that all settings
            # share decides nothing; the share of the step that drafting adds is missed by the profile's own
            # share, less what the cell's steps told.
            prior = miss * abs(1.0 - off_s / predicted_s)
            sigma_ratio = prior / math.sqrt(1.0 + cells[is_drafting].steps * (prior / scatter) ** 2)
            costs[k] = StepCostEstimate(
                ratio * predicted_s, sigma_ratio, known[is_drafting], None, ratio * told_s
            )
        return costs

    def _decoding_s(
        self,
        load: _Load,
        alone_s: Sequence[float],
        decode_batch: float,
        verified_tokens: Mapping[int, float],
        context: float,
    ) -> list[float]:
        """Of the bucket's mean step; in steps with prompts, what decoding adds to what they take anyway."""
        prefill = load.prefill_tokens / load.mixed_steps
        prompts_s = self.curve.prompts_s(prefill)
        share = load.mixed_steps / (load.steps + PRIOR_STEPS_ALONE)
        with_both_s = [
            self.curve.step_s(decode_batch, k, verified, context, prefill)
            for k, verified in verified_tokens.items()
        ]
        return [
            (1.0 - share) * alone + share * max(both - prompts_s, 0.0)
            for alone, both in zip(alone_s, with_both_s, strict=True)
        ]

    def _sums_of(self, cell: CellDelta) -> _Sums:
        predicted_s = self.curve.step_s(
            cell.request_steps / cell.steps,
            cell.num_speculative_tokens,
            cell.verified_tokens / cell.steps,
            cell.context_tokens / cell.steps,
        )
        level = self.server_ratio * predicted_s
        mean_s = min(max(cell.step_s / cell.steps, level / OUTLIER_RATIO), level * OUTLIER_RATIO)
        return _Sums(float(cell.steps), mean_s * cell.steps, predicted_s * cell.steps)


def _with_loads(known: Mapping[int, _Load], cells: Sequence[CellDelta]) -> dict[int, _Load]:
    loads = dict(known)
    for cell in cells:
        loads[cell.decode_batch_to] = loads.get(cell.decode_batch_to, _NO_LOAD).plus(cell)
    return loads


def _levels(cells: Mapping[_Key, _Sums]) -> tuple[_Sums, dict[int, float], bool]:
    """All together, the ratio of each bucket, and whether the cells contradict the profile."""
    server, buckets = _NOTHING, dict[int, _Sums]()
    for (upper, _), sums in cells.items():
        server = server.plus(sums)
        known = buckets.get(upper)
        buckets[upper] = sums if known is None else known.plus(sums)
    server_ratio = server.ratio(1.0)
    scatter = sum(
        sums.steps * math.log(sums.measured_s / sums.predicted_s / server_ratio) ** 2
        for sums in cells.values()
    )
    is_off = abs(math.log(server_ratio)) > math.log(REFUTED_RATIO)
    is_refuted = server.steps >= REFUTED_STEPS and (is_off or scatter > REFUTED_SIGMA**2 * server.steps)
    return server, {upper: sums.ratio(server_ratio) for upper, sums in buckets.items()}, is_refuted
