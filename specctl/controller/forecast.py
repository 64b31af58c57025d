"""Estimates -> what every candidate setting would give at every decode-batch bucket. Pure."""

from __future__ import annotations

import math

from specctl.contract.capabilities import Capabilities
from specctl.estimate.base import StepCostModel
from specctl.types import (
    BucketForecast,
    CandidateForecast,
    CellDelta,
    Observation,
    StepCostEstimate,
    SurvivalEstimate,
)

__all__ = ["Bounds", "active_batches", "bucket_bounds", "forecast_bucket"]

Bounds = tuple[int, int]


def bucket_bounds(capabilities: Capabilities) -> list[Bounds]:
    """First and last decode batch of every bucket, as the engine counts them."""
    uppers = capabilities.decode_batch_buckets or (capabilities.decode_batch_max,)
    return [(1 if i == 0 else uppers[i - 1] + 1, upper) for i, upper in enumerate(uppers)]


def active_batches(observation: Observation) -> dict[int, float]:
    """Mean decode batch of the buckets that ran in the interval, by the bucket's upper end."""
    steps: dict[int, list[CellDelta]] = {}
    for cell in observation.cells or ():
        if cell.request_steps:
            steps.setdefault(cell.decode_batch_to, []).append(cell)
    return {
        upper: sum(cell.request_steps for cell in cells) / sum(cell.steps for cell in cells)
        for upper, cells in steps.items()
    }


def forecast_bucket(
    bounds: Bounds,
    decode_batch: float | None,
    present: int,
    candidates: tuple[int, ...],
    survival: SurvivalEstimate,
    cost: StepCostModel,
) -> BucketForecast:
    """``decode_batch``: the bucket's mean batch in the interval; None: no traffic there now."""
    batch = decode_batch if decode_batch is not None else (bounds[0] + bounds[1]) / 2
    wanted = tuple(sorted({0, present, *candidates}))
    costs = {k: cost.step_cost(bounds[1], batch, k, _verified(batch, k, survival)) for k in wanted}
    forecasts = tuple(
        _candidate(k, batch, survival, costs[k], present, costs[present]) for k in wanted if k in candidates
    )
    unknown = [estimate.why_unknown for estimate in costs.values() if estimate.why_unknown]
    return BucketForecast(
        decode_batch_from=bounds[0],
        decode_batch_to=bounds[1],
        decode_batch=batch,
        present_num_speculative_tokens=present,
        candidates=forecasts,
        is_active=decode_batch is not None,
        is_extrapolated=not cost.is_bucket_measured(bounds[1]),
        trials=survival.trials,
        why_unknown=unknown[0] if unknown else None,
    )


def _verified(batch: float, num_speculative_tokens: int, survival: SurvivalEstimate) -> float:
    return batch * (1.0 + survival.drafted_tokens(num_speculative_tokens))


def _candidate(
    num_speculative_tokens: int,
    batch: float,
    survival: SurvivalEstimate,
    cost: StepCostEstimate,
    present: int,
    present_cost: StepCostEstimate,
) -> CandidateForecast:
    tokens = 1.0 + survival.accepted_tokens(num_speculative_tokens)
    rate = None if cost.step_s is None else batch * tokens / cost.step_s
    sigma = 0.0
    if num_speculative_tokens != present:
        acceptance = _log_ratio_var(survival, num_speculative_tokens, present)
        sigma = math.sqrt(acceptance + cost.sigma_ratio**2 + present_cost.sigma_ratio**2)
    return CandidateForecast(
        num_speculative_tokens=num_speculative_tokens,
        step_s=cost.step_s,
        tokens_per_s=rate,
        sigma_ratio=sigma,
        tokens_per_request_step=tokens,
        is_cost_measured=cost.is_measured,
        verified_tokens=_verified(batch, num_speculative_tokens, survival),
    )


def _log_ratio_var(survival: SurvivalEstimate, one: int, other: int) -> float:
    """Variance of log(tokens a step at one / at other), by the delta method over the conditionals q_j.

    d/dq_j of sum_k S_k is (S_j + ... + S_K) / q_j; q_j has the variance q_j (1 - q_j) / (trials + 1).
    """
    tokens_one = 1.0 + survival.accepted_tokens(one)
    tokens_other = 1.0 + survival.accepted_tokens(other)
    total = 0.0
    tail_one = (tokens_one - 1.0) / tokens_one
    tail_other = (tokens_other - 1.0) / tokens_other
    for j in range(max(one, other)):
        q, s = survival.conditional_at[j], survival.survival_at[j]
        if q > 0:
            total += (tail_one - tail_other) ** 2 / q * (1.0 - q) / (survival.trials_at[j] + 1.0)
        if j < one:
            tail_one -= s / tokens_one
        if j < other:
            tail_other -= s / tokens_other
    return total
