"""One non-negative line over all buckets: step seconds from a constant, verified tokens and decode batch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

import numpy as np

from specctl.estimate.moments import Moments

__all__ = ["PooledFit", "fit_pooled", "prepare", "usable_var_v"]

STEPS_MIN = 5.0
# Below this spread of verified tokens, in tokens^2 over a step, a slope is noise.
VAR_V_MIN = 0.05
# A slope that is negative by this much, and that would matter by this share of a step, is impossible, not
# noise.
IMPOSSIBLE_SIGMA = 3.0
IMPOSSIBLE_RATIO = 0.1
BATCH_SPREAD_MIN = 0.5
# A variance below this share of the squared mean is what rounding of the sums leaves.
ROUNDING_RATIO = 1e-9

_Column = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class PooledFit:
    """step_s = constant_s + slope_s x verified tokens + batch_s x decode batch; slope_s None: unknown."""

    constant_s: float = 0.0
    slope_s: float | None = None
    batch_s: float = 0.0
    slope_sigma_s: float | None = None
    residual_ratio_var: float = 0.0
    sigma_ratio: float = 0.0
    verified_tokens_max: float = 0.0
    why_unknown: str | None = "no decode-only step seen yet"

    def predict_s(self, decode_batch: float, verified_tokens: float) -> float:
        return self.constant_s + (self.slope_s or 0.0) * verified_tokens + self.batch_s * decode_batch

    def residual_var(self, bucket: Moments) -> float:
        """Variance of a single step around the fit, in s^2, at the bucket's level."""
        return self.residual_ratio_var * bucket.mean_s**2


def usable_var_v(moments: Moments) -> float:
    """Variance of verified tokens over the steps; 0 where rounding of the sums is all there is."""
    var_v = moments.var_v
    return var_v if var_v > ROUNDING_RATIO * moments.mean_v**2 + ROUNDING_RATIO else 0.0


def fit_pooled(cells: Iterable[Moments]) -> PooledFit:
    """Weighted non-negative least squares over pseudo-steps that keep every cell's moments."""
    known = [cell for cell in cells if cell.steps >= 1]
    steps = sum(cell.steps for cell in known)
    if steps < STEPS_MIN:
        return PooledFit(why_unknown=f"{steps:.0f} decode-only steps seen, {STEPS_MIN:.0f} needed")
    means = _Means.of(known)
    points = means.pseudo_steps()
    extra = points.verified - points.batch
    mean_extra = float(points.weight @ extra) / steps
    spread = float(points.weight @ (extra - mean_extra) ** 2) / steps
    if spread < VAR_V_MIN:
        return PooledFit(why_unknown="verified tokens never varied, so their cost is unknown")
    columns = [np.ones_like(points.verified), points.verified]
    if float(points.batch.max() - points.batch.min()) > BATCH_SPREAD_MIN:
        columns.append(points.batch)
    coefficients = _non_negative(np.array(columns).T, points.step_s, points.weight / points.step_s**2)
    return _checked(means, points, coefficients, steps, spread)


def prepare() -> None:
    """Load what the first fit needs, so that it does not hold up a tick by a second."""
    _non_negative(np.ones((2, 1)), np.ones(2), np.ones(2))


@dataclass(frozen=True, slots=True)
class _Points:
    """Steps made up for the fit; ``weight``: how many real steps each stands for."""

    step_s: _Column
    verified: _Column
    batch: _Column
    weight: _Column


@dataclass(frozen=True, slots=True)
class _Means:
    """What ``Moments`` tells of a mean step, for all cells at once: the fit is the dear part of a look."""

    steps: _Column
    step_s: _Column
    verified: _Column
    batch: _Column
    var_s: _Column
    var_v: _Column
    cov_sv: _Column

    @classmethod
    def of(cls, cells: list[Moments]) -> _Means:
        steps, request_steps, s, ss, v, vv, sv = (
            np.fromiter(chain.from_iterable(cells), float).reshape(-1, 7).T
        )
        mean_s, mean_v = s / steps, v / steps
        var_v = vv / steps - mean_v**2
        return cls(
            steps=steps,
            step_s=mean_s,
            verified=mean_v,
            batch=request_steps / steps,
            var_s=np.maximum(ss / steps - mean_s**2, 0.0),
            var_v=np.where(var_v > ROUNDING_RATIO * mean_v**2 + ROUNDING_RATIO, var_v, 0.0),
            cov_sv=sv / steps - mean_s * mean_v,
        )

    def pseudo_steps(self) -> _Points:
        """Two points a cell, with its mean, variance of v and covariance."""
        spread = np.sqrt(self.var_v)
        most = 0.9 * self.step_s
        rise = np.minimum(np.maximum(_ratio(self.cov_sv, spread), -most), most)
        return _Points(
            step_s=np.concatenate((self.step_s - rise, self.step_s + rise)),
            verified=np.concatenate((self.verified - spread, self.verified + spread)),
            batch=np.concatenate((self.batch, self.batch)),
            weight=np.concatenate((self.steps, self.steps)) / 2,
        )

    def unexplained_ratio_var(self) -> float:
        """Of a step around its cell's own slope, as a share of the cell's mean step, mean of all steps."""
        unexplained = np.maximum(self.var_s - _ratio(self.cov_sv**2, self.var_v), 0.0)
        return float(self.steps @ (unexplained / self.step_s**2) / self.steps.sum())

    def free_slope(self) -> float | None:
        """Slope within cells, without the constraint: what tells an impossible fit from a flat one."""
        var_v = float(self.steps @ self.var_v)
        return None if var_v <= 0 else float(self.steps @ (self.cov_sv * (self.var_v > 0))) / var_v


def _ratio(above: _Column, below: _Column) -> _Column:
    """0 where ``below`` is."""
    return np.divide(above, below, out=np.zeros_like(below), where=below > 0)


def _non_negative(
    features: np.ndarray[tuple[int, int], np.dtype[np.float64]], step_s: _Column, weight: _Column
) -> list[float]:
    # Imported late: only a daemon that fits needs SciPy.
    from scipy.optimize import nnls

    root = np.sqrt(weight)
    coefficients, _ = nnls(features * root[:, None], step_s * root)
    return [float(value) for value in coefficients]


def _checked(
    means: _Means, points: _Points, coefficients: list[float], steps: float, spread: float
) -> PooledFit:
    constant_s, slope_s, batch_s = (*coefficients, 0.0)[:3]
    verified_tokens_max = float(points.verified.max())
    predicted = constant_s + slope_s * points.verified + batch_s * points.batch
    between = float(points.weight @ ((points.step_s - predicted) / points.step_s) ** 2) / steps
    within = means.unexplained_ratio_var()
    mean_s = float(points.weight @ points.step_s) / steps
    slope_sigma_s = mean_s * math.sqrt(max(between + within, 1e-12) / (steps * spread))
    free_slope_s = means.free_slope()
    reach = verified_tokens_max - float(points.verified.min())
    if (
        free_slope_s is not None
        and free_slope_s < -IMPOSSIBLE_SIGMA * slope_sigma_s
        and -free_slope_s * reach > IMPOSSIBLE_RATIO * mean_s
    ):
        return PooledFit(why_unknown="impossible fit: steps get faster with more verified tokens")
    return PooledFit(
        constant_s=constant_s,
        slope_s=slope_s,
        batch_s=batch_s,
        slope_sigma_s=slope_sigma_s,
        residual_ratio_var=between + within,
        sigma_ratio=math.sqrt((between + within) / steps) + math.sqrt(between),
        verified_tokens_max=verified_tokens_max,
        why_unknown=None,
    )
