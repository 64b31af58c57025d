"""One non-negative line over all buckets: step seconds from a constant, verified tokens and decode batch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

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
    return var_v if var_v > 1e-9 * moments.mean_v**2 + 1e-9 else 0.0


def fit_pooled(cells: Iterable[Moments]) -> PooledFit:
    """Weighted non-negative least squares over pseudo-steps that keep every cell's moments."""
    known = [cell for cell in cells if cell.steps >= 1]
    steps = sum(cell.steps for cell in known)
    if steps < STEPS_MIN:
        return PooledFit(why_unknown=f"{steps:.0f} decode-only steps seen, {STEPS_MIN:.0f} needed")
    points = np.array([point for cell in known for point in _pseudo_steps(cell)])
    step_s, verified, batch, weight = points.T
    relative = weight / step_s**2
    extra = verified - batch
    spread = float(np.average((extra - np.average(extra, weights=weight)) ** 2, weights=weight))
    if spread < VAR_V_MIN:
        return PooledFit(why_unknown="verified tokens never varied, so their cost is unknown")
    columns = [np.ones_like(verified), verified]
    if float(batch.max() - batch.min()) > BATCH_SPREAD_MIN:
        columns.append(batch)
    coefficients = _non_negative(np.stack(columns, axis=1), step_s, relative)
    return _checked(known, points, coefficients, steps, spread)


def prepare() -> None:
    """Load what the first fit needs, so that it does not hold up a tick by a second."""
    _non_negative(np.ones((2, 1)), np.ones(2), np.ones(2))


def _pseudo_steps(cell: Moments) -> list[tuple[float, float, float, float]]:
    """(s, v, batch, weight): two points with the cell's mean, variance of v and covariance."""
    spread = math.sqrt(usable_var_v(cell))
    if spread == 0.0:
        return [(cell.mean_s, cell.mean_v, cell.mean_batch, cell.steps)]
    rise = cell.cov_sv / spread
    rise = max(min(rise, 0.9 * cell.mean_s), -0.9 * cell.mean_s)
    half = cell.steps / 2
    return [
        (cell.mean_s - rise, cell.mean_v - spread, cell.mean_batch, half),
        (cell.mean_s + rise, cell.mean_v + spread, cell.mean_batch, half),
    ]


def _non_negative(
    features: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    step_s: np.ndarray[tuple[int], np.dtype[np.float64]],
    weight: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> list[float]:
    # Imported late: only a daemon that fits needs SciPy.
    from scipy.optimize import nnls

    root = np.sqrt(weight)
    coefficients, _ = nnls(features * root[:, None], step_s * root)
    return [float(value) for value in coefficients]


def _checked(
    cells: list[Moments],
    points: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    coefficients: list[float],
    steps: float,
    spread: float,
) -> PooledFit:
    step_s, verified, batch, weight = points.T
    batch_s = coefficients[2] if len(coefficients) > 2 else 0.0
    predicted = coefficients[0] + coefficients[1] * verified + batch_s * batch
    between = float(np.average(((step_s - predicted) / step_s) ** 2, weights=weight))
    within = sum(_unexplained_var(cell) / cell.mean_s**2 * cell.steps for cell in cells) / steps
    mean_s = float(np.average(step_s, weights=weight))
    slope_sigma_s = mean_s * math.sqrt(max(between + within, 1e-12) / (steps * spread))
    free_slope_s = _free_slope(cells)
    reach = float(verified.max() - verified.min())
    if (
        free_slope_s is not None
        and free_slope_s < -IMPOSSIBLE_SIGMA * slope_sigma_s
        and -free_slope_s * reach > IMPOSSIBLE_RATIO * mean_s
    ):
        return PooledFit(why_unknown="impossible fit: steps get faster with more verified tokens")
    return PooledFit(
        constant_s=coefficients[0],
        slope_s=coefficients[1],
        batch_s=batch_s,
        slope_sigma_s=slope_sigma_s,
        residual_ratio_var=between + within,
        sigma_ratio=math.sqrt((between + within) / steps) + math.sqrt(between),
        verified_tokens_max=float(verified.max()),
        why_unknown=None,
    )


def _unexplained_var(cell: Moments) -> float:
    var_v = usable_var_v(cell)
    explained = cell.cov_sv**2 / var_v if var_v > 0 else 0.0
    return max(cell.var_s - explained, 0.0)


def _free_slope(cells: list[Moments]) -> float | None:
    """Slope within cells, without the constraint: what tells an impossible fit from a flat one."""
    var_v = sum(usable_var_v(cell) * cell.steps for cell in cells)
    if var_v <= 0:
        return None
    return sum(cell.cov_sv * cell.steps for cell in cells if usable_var_v(cell) > 0) / var_v
