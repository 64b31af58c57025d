"""Estimates -> what every candidate setting would give at every decode-batch bucket. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from specctl.contract.capabilities import Capabilities
from specctl.estimate.base import StepCostModel
from specctl.types import (
    BucketForecast,
    CandidateForecast,
    Observation,
    StepCostEstimate,
    SurvivalEstimate,
)

__all__ = ["BatchSums", "Bounds", "active_batches", "batch_sums", "bucket_bounds", "forecast_buckets"]

Bounds = tuple[int, int]
# Steps and request-steps.
BatchSums = tuple[float, float]
# A bucket's settings should not follow the batch's every move within it.
BATCH_HALF_LIFE_S = 30.0


def bucket_bounds(capabilities: Capabilities) -> list[Bounds]:
    """First and last decode batch of every bucket, as the engine counts them."""
    uppers = capabilities.decode_batch_buckets or (capabilities.decode_batch_max,)
    return [(1 if i == 0 else uppers[i - 1] + 1, upper) for i, upper in enumerate(uppers)]


def batch_sums(known: Mapping[int, BatchSums], observation: Observation) -> dict[int, BatchSums]:
    """Steps and request-steps by bucket, discounted: where in its bucket the batch usually is."""
    factor = 0.5 ** ((observation.interval_s or 0.0) / BATCH_HALF_LIFE_S)
    sums = {upper: (steps * factor, requests * factor) for upper, (steps, requests) in known.items()}
    for cell in observation.cells or ():
        if cell.request_steps:
            steps, requests = sums.get(cell.decode_batch_to, (0.0, 0.0))
            sums[cell.decode_batch_to] = (steps + cell.steps, requests + cell.request_steps)
    return sums


def active_batches(sums: Mapping[int, BatchSums], observation: Observation) -> dict[int, float]:
    """Usual decode batch of the buckets that ran in the interval, by the bucket's upper end."""
    ran = {cell.decode_batch_to for cell in observation.cells or () if cell.request_steps}
    return {upper: sums[upper][1] / sums[upper][0] for upper in sorted(ran)}


def forecast_buckets(
    bounds: list[Bounds],
    batches: Mapping[int, float],
    present: Mapping[int, int],
    candidates: tuple[int, ...],
    survival: SurvivalEstimate,
    cost: StepCostModel,
) -> list[BucketForecast]:
    """
    Args:
        batches: mean decode batch of the interval, of the buckets with traffic, by their upper end.
        present: num_speculative_tokens to compare with, by upper end.
    """
    tokens, trials = _Tokens.of(survival), survival.trials
    # A few values serve all buckets, and nothing of this depends on the bucket.
    variances = {value: _log_ratio_vars(survival, tokens, value) for value in {present[b[1]] for b in bounds}}
    return [
        _forecast_bucket(
            b, batches.get(b[1]), present[b[1]], candidates, trials, tokens, variances[present[b[1]]], cost
        )
        for b in bounds
    ]


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Expected tokens of a request-step, by num_speculative_tokens: the same in every bucket."""

    emitted: tuple[float, ...]
    verified: tuple[float, ...]

    @classmethod
    def of(cls, survival: SurvivalEstimate) -> _Tokens:
        return cls(
            emitted=tuple(1.0 + tokens for tokens in accumulate(survival.survival_at, initial=0.0)),
            verified=tuple(1.0 + tokens for tokens in accumulate(survival.drafted_at, initial=0.0)),
        )


def _forecast_bucket(
    bounds: Bounds,
    decode_batch: float | None,
    present: int,
    candidates: tuple[int, ...],
    trials: float,
    tokens: _Tokens,
    variances: list[float],
    cost: StepCostModel,
) -> BucketForecast:
    """``decode_batch``: the bucket's mean batch in the interval; None: no traffic there now."""
    batch = decode_batch if decode_batch is not None else (bounds[0] + bounds[1]) / 2
    wanted = candidates if present in candidates else tuple(sorted({present, *candidates}))
    verified = {k: batch * tokens.verified[k] for k in wanted}
    costs = cost.step_costs(bounds[1], batch, verified)
    unknown = [estimate.why_unknown for estimate in costs.values() if estimate.why_unknown]
    return BucketForecast(
        decode_batch_from=bounds[0],
        decode_batch_to=bounds[1],
        decode_batch=batch,
        present_num_speculative_tokens=present,
        candidates=_candidates(candidates, batch, costs, present, tokens.emitted, verified, variances),
        is_active=decode_batch is not None,
        is_extrapolated=not cost.is_bucket_measured(bounds[1]),
        trials=trials,
        why_unknown=unknown[0] if unknown else None,
    )


def _candidates(
    values: tuple[int, ...],
    batch: float,
    costs: Mapping[int, StepCostEstimate],
    present: int,
    emitted: tuple[float, ...],
    verified: Mapping[int, float],
    variances: list[float],
) -> tuple[CandidateForecast, ...]:
    """``variances``: of log(tokens a step at each value / at the present one)."""
    forecasts = []
    present_var = costs[present].sigma_ratio ** 2
    for k in values:
        step_s, sigma_ratio, is_measured, _, decoding_s = costs[k]
        rate = None if step_s is None else batch * emitted[k] / (decoding_s or step_s)
        sigma = 0.0 if k == present else math.sqrt(variances[k] + sigma_ratio**2 + present_var)
        forecasts.append(CandidateForecast(k, step_s, rate, sigma, emitted[k], is_measured, verified[k]))
    return tuple(forecasts)


def _log_ratio_vars(survival: SurvivalEstimate, tokens: _Tokens, other: int) -> list[float]:
    """Variance of log(tokens a step at k / at ``other``) for every k, by the delta method over the
    conditionals q_j.

    d/dq_j of log T_k, T_k = 1 + S_0 + ... + S_(k-1), is tail / q_j with tail = (S_j + ... + S_(k-1)) / T_k
    = 1 - T_j / T_k, and 0 from k on; q_j has the variance q_j (1 - q_j) / (trials + 1). So each k is a sum
    over j of (tail at k - tail at other)^2 x (1 - q_j) / q_j / (trials + 1), which falls into three parts:
    below both values it is T_j^2 (1 / T_k - 1 / T_other)^2, between them the larger one's tail squared,
    above both 0. Positions without trials count as their guess: a step up is short, and tells the next look.
    """
    emitted = tokens.emitted
    weights = [
        (1.0 - q) / q / (trials + 1.0) if q > 0 and j < survival.measured_positions else 0.0
        for j, (q, trials) in enumerate(zip(survival.conditional_at, survival.trials_at, strict=True))
    ]
    below = list(accumulate((w * t * t for w, t in zip(weights, emitted, strict=False)), initial=0.0))
    at_other = 1.0 / emitted[other]
    variances = [0.0] * len(emitted)
    between = 0.0
    for k in range(other - 1, -1, -1):
        tail = 1.0 - emitted[k] * at_other
        between += weights[k] * tail * tail
        variances[k] = below[k] * (1.0 / emitted[k] - at_other) ** 2 + between
    # Upwards the tails grow with k: sums over j of weight, weight x tail and weight x tail^2, times T_k.
    ones = rests = squares = 0.0
    for k in range(other + 1, len(emitted)):
        gained = survival.survival_at[k - 1]
        ones += weights[k - 1]
        squares += gained * (2.0 * rests + gained * ones)
        rests += gained * ones
        per_k = 1.0 / emitted[k]
        variances[k] = below[other] * (per_k - at_other) ** 2 + squares * per_k * per_k
    return variances
