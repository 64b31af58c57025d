"""Forecasts made by hand: one bucket, or some that are alike."""

from __future__ import annotations

import numpy as np
from fakes.observations import capabilities

from specctl.contract.setting import Setting
from specctl.core.acceptance import AcceptanceEstimate
from specctl.core.forecast import Forecast, forecast
from specctl.core.objective import Objective
from specctl.core.space import Space
from specctl.core.step_cost import StepCostEstimate

__all__ = ["acceptance", "cost", "forecast_of", "space_of"]


def space_of(settings: tuple[Setting, ...], buckets: tuple[int, ...] = (1,)) -> Space:
    return Space.of(capabilities(settings, buckets))


def acceptance(
    space: Space, emitted: tuple[float, ...], *, trials: float = 1000.0, variance: float = 0.0
) -> AcceptanceEstimate:
    """``variance``: of the logarithm of every setting's tokens but off's."""
    shape = len(space.settings), 1
    return AcceptanceEstimate(
        emitted=np.array(emitted),
        drafted=space.depth.astype(float),
        gradient=np.where(space.depth > 0, 1.0, 0.0).reshape(shape),
        log_q_var=np.array([variance]),
        survival=np.array([0.8]),
        trials=trials,
        has_drifted=False,
    )


def cost(
    space: Space,
    step_s: tuple[float, ...],
    *,
    sigma: float = 0.0,
    batch: float = 1.0,
    mixed_share: float = 0.0,
    decoding_s: tuple[float, ...] | None = None,
    measured: bool = True,
) -> StepCostEstimate:
    """Every bucket alike; ``batch`` None: of the bucket's end."""
    count, shape = len(space.buckets), (len(space.buckets), len(space.settings))
    batches = np.full(count, batch)
    return StepCostEstimate(
        step_s=np.tile(np.array(step_s), (count, 1)),
        sigma=np.full(shape, sigma),
        is_measured=np.full(shape, measured),
        decoding_s=np.tile(np.array(decoding_s or step_s), (count, 1)),
        mixed_sigma=np.zeros(shape),
        batch=batches,
        mixed_share=np.full(count, mixed_share),
        verified=batches[:, None] * space.width[None, :].astype(float),
        prompt_s=np.zeros(shape),
    )


def forecast_of(
    space: Space,
    emitted: tuple[float, ...],
    steps: StepCostEstimate,
    *,
    present: int = 0,
    is_active: bool = True,
    trials: float = 1000.0,
    variance: float = 0.0,
    eligible: tuple[bool, ...] | None = None,
) -> Forecast:
    """Time is the price."""
    count = len(space.buckets)
    return forecast(
        space,
        np.full(count, present),
        np.full(count, is_active),
        acceptance(space, emitted, trials=trials, variance=variance),
        steps,
        Objective(),
        np.array(eligible) if eligible else np.ones(len(space.settings), np.bool_),
    )
