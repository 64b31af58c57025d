"""Seconds of a step from a cost curve that is fitted to the server's own steps, prompts included.

What drafts cost shows in decode-only steps only as far as drafts were made; steps with prompts tell what
hundreds of tokens cost before any draft was tried. So the curve of ``specctl profile`` is fitted to the last
minutes now and then, and corrected in between as a profile is. Until it can be told, and where it misses, the
step cost by cells stands in. A server's profile, where there is one, is the curve that it begins with;
nothing is fitted before its steps have refuted it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from specctl.errors import SpecctlError
from specctl.estimate.cost_curve import CostCurve
from specctl.estimate.cost_fit import fit_costs
from specctl.estimate.experts import Experts
from specctl.estimate.profiled_cost import ProfiledStepCost
from specctl.estimate.step_cost import DiscountedStepCost
from specctl.types import CellDelta, Observation, StepCostEstimate

__all__ = ["FittedStepCost"]

# Gains of cells that a fit rests on: some minutes, as a look brings one to five.
ROWS_MAX = 400
ROWS_MIN = 12
# Looks with traffic between two fits: the first come quickly, as the first probes tell most. Later ones move
# settings to and fro by what the fit is unsure of.
FIT_EVERY = 120
FIT_FIRST = 3
# A curve that misses its own measurement by more says nothing.
MISS_MAX_RATIO = 0.15


@dataclass(frozen=True, slots=True)
class FittedStepCost:
    """``rows``: the last gains of cells; ``fitted`` None: no curve could be told yet.

    ``is_profile``: the curve in ``fitted`` is a profile's.
    """

    experts: Experts | None = None
    rows: tuple[CellDelta, ...] = ()
    looks: int = 0
    fits: int = 0
    by_cells: DiscountedStepCost = field(default_factory=DiscountedStepCost)
    fitted: ProfiledStepCost | None = None
    is_profile: bool = False

    @classmethod
    def begun_with(cls, profile: CostCurve, experts: Experts | None = None) -> Self:
        return cls(experts=experts, fitted=ProfiledStepCost(profile), is_profile=True)

    def updated(self, observation: Observation) -> Self:
        if observation.cells is None or observation.interval_s is None:
            return self
        fitted = None if self.fitted is None else self.fitted.updated(observation)
        # The fitted cost keeps the cells' too, for when it is refuted: the same ones, so never twice.
        by_cells = self.by_cells.updated(observation) if fitted is None else fitted.learned
        fresh = tuple([cell for cell in observation.cells if cell.request_steps and cell.step_s > 0])
        if not fresh:
            return replace(self, by_cells=by_cells, fitted=fitted)
        rows = (*self.rows, *fresh)[-ROWS_MAX:]
        looks = self.looks + 1
        known = type(self)(self.experts, rows, looks, self.fits, by_cells, fitted, self.is_profile)
        is_due = looks >= min(FIT_FIRST * 2**self.fits, FIT_EVERY) and len(rows) >= ROWS_MIN
        stands = self.is_profile and fitted is not None and not fitted.is_refuted
        return known._refitted() if is_due and not stands else known

    def is_bucket_measured(self, bucket_to: int) -> bool:
        return self._best.is_bucket_measured(bucket_to)

    def step_cost(
        self, bucket_to: int, decode_batch: float, num_speculative_tokens: int, verified_tokens: float
    ) -> StepCostEstimate:
        return self._best.step_cost(bucket_to, decode_batch, num_speculative_tokens, verified_tokens)

    def step_costs(
        self, bucket_to: int, decode_batch: float, verified_tokens: Mapping[int, float]
    ) -> Mapping[int, StepCostEstimate]:
        return self._best.step_costs(bucket_to, decode_batch, verified_tokens)

    @property
    def _best(self) -> DiscountedStepCost | ProfiledStepCost:
        return self.by_cells if self.fitted is None else self.fitted

    def _refitted(self) -> Self:
        try:
            costs = fit_costs(self.rows, is_profile=False, experts=self.experts)
        except SpecctlError:
            return replace(self, looks=0)
        looked = replace(self, looks=0, fits=self.fits + 1, is_profile=False)
        if costs.miss_ratio > MISS_MAX_RATIO:
            return replace(looked, fitted=None)
        curve = CostCurve.of_fit(costs, max(row.request_steps / row.steps for row in self.rows))
        fitted = self.fitted or ProfiledStepCost(curve, learned=self.by_cells)
        # What drafting itself takes is told by steps with drafts and steps without, and by nothing else.
        knows_off = {row.num_speculative_tokens > 0 for row in self.rows} == {False, True}
        return replace(looked, fitted=replace(fitted.on(curve, self.rows), knows_off=knows_off))
