"""What a policy wants most: tokens for seconds, within bounds on latency, or tokens for money. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specctl.core.acceptance import AcceptanceEstimate
from specctl.core.space import Floats
from specctl.core.step_cost import StepCostEstimate

__all__ = ["LatencyBounds", "LatencyReading", "Objective", "Prices"]

HOUR_S = 3600.0
KWH_J = 3.6e6


@dataclass(frozen=True)
class Prices:
    """Money, in any currency, and energy."""

    server_per_hour: float
    energy_per_kwh: float = 0.0
    idle_power_w: float = 0.0
    joules_per_verified_token: float = 0.0

    def of_step(self, step_s: Floats, verified: Floats) -> Floats:
        energy_j = self.idle_power_w * step_s + self.joules_per_verified_token * verified
        return self.server_per_hour / HOUR_S * step_s + energy_j * self.energy_per_kwh / KWH_J


@dataclass(frozen=True)
class LatencyBounds:
    """Seconds; None: no bound. ``tpot_quantile``, ``ttft_quantile``: of requests; None: the mean."""

    max_tpot_s: float | None = None
    tpot_quantile: float | None = None
    max_ttft_s: float | None = None
    ttft_quantile: float | None = None
    max_itl_s: float | None = None


@dataclass(frozen=True)
class LatencyReading:
    """What the engine measured lately, under the settings then in force. None: not measured.

    ``tpot_s``, ``ttft_s``: the bounded quantile or mean. ``step_s``, ``tokens_per_step``: mean seconds of the
    steps among which they were measured, prompts included, and tokens of a request in them.
    """

    tpot_s: float | None
    ttft_s: float | None
    step_s: float | None
    tokens_per_step: float | None
    is_queued: bool


@dataclass(frozen=True)
class Objective:
    """``prices`` None: time is the price."""

    prices: Prices | None = None
    bounds: LatencyBounds = LatencyBounds()

    def price(self, step_s: Floats, verified: Floats) -> Floats:
        return step_s if self.prices is None else self.prices.of_step(step_s, verified)

    def used_ratio(
        self,
        cost: StepCostEstimate,
        acceptance: AcceptanceEstimate,
        reading: LatencyReading | None,
    ) -> Floats:
        """[bucket, setting]: predicted / allowed of the nearest bound, or the one broken most.

        A bound on a quantile holds for requests whose drafts fare worse than the mean: of the measured
        quantile it is known how many tokens a step gave them, and what they gain from drafts is scaled from
        there. The queue drains at the server's rate; without one a request waits for the steps of others.
        """
        used = np.zeros_like(cost.step_s)
        bounds = self.bounds
        if bounds.max_itl_s is not None:
            used = np.maximum(used, cost.step_s / bounds.max_itl_s)
        if bounds.max_tpot_s is not None:
            emitted = _slow_request_tokens(acceptance.emitted, reading, bounds.tpot_quantile)
            used = np.maximum(used, cost.cycle_s / emitted / bounds.max_tpot_s)
        if bounds.max_ttft_s is not None and reading is not None and reading.ttft_s is not None:
            step_s, tokens = reading.step_s, reading.tokens_per_step
            if step_s and tokens:
                slower = cost.cycle_s / step_s
                if reading.is_queued:
                    slower = slower * tokens / acceptance.emitted[None, :]
                used = np.maximum(used, reading.ttft_s * slower / bounds.max_ttft_s)
        return used


def _slow_request_tokens(emitted: Floats, reading: LatencyReading | None, quantile: float | None) -> Floats:
    """[1, setting]: tokens a step of a request at the bounded quantile; the mean where it is not measured."""
    if (
        quantile is None
        or reading is None
        or not (reading.tpot_s and reading.step_s and reading.tokens_per_step)
    ):
        return emitted[None, :]
    slow = min(max(reading.step_s / reading.tpot_s, 1.0), reading.tokens_per_step)
    usual_gain = max(reading.tokens_per_step - 1.0, 1e-9)
    share = (slow - 1.0) / usual_gain
    return 1.0 + share * (emitted[None, :] - 1.0)
