"""A line in pieces, and coefficients that are not negative."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from specctl.estimate.experts import Experts

__all__ = ["non_negative", "over_pieces", "with_points_between"]

_Floats = npt.NDArray[np.float64]

REWEIGHTINGS = 10
HUBER_SIGMAS = 1.345
# Standard deviation of a normal law over the median of its absolute values.
SIGMA_OF_MEDIAN = 1.4826
MISS_MIN_RATIO = 0.01
# Between two points of a line that the experts bend.
POINTS_RATIO = 1.25


def with_points_between(knots: _Floats) -> _Floats:
    """Whole numbers up to the last knot, each at least POINTS_RATIO over the last but for the knots."""
    most = knots[-1]
    steps = np.arange(1, math.ceil(math.log(most) / math.log(POINTS_RATIO)))
    return np.unique(np.concatenate((knots, np.ceil(POINTS_RATIO**steps).clip(max=most))))


def over_pieces(tokens: _Floats, knots: _Floats, experts: Experts | None) -> _Floats:
    """[point, knot]: 1, and how far each piece is passed; the last one has no end. Then, if there are
    experts, [point]: the distinct ones."""
    columns = [np.ones_like(tokens)]
    for place, (low, high) in enumerate(pairwise(knots)):
        end = np.inf if place == len(knots) - 2 else high - low
        columns.append(np.clip(tokens - low, 0.0, end))
    if experts is not None:
        columns.append(experts.distinct(tokens))
    return np.column_stack(columns)


def non_negative(features: _Floats, target: _Floats, weight: _Floats) -> _Floats:
    """Coefficients of at least 0, each found on its own scale.

    Points far from the fit are weighed down (Huber 1964, "Robust estimation of a location parameter", by
    reweighting): a mean over few steps may hold a stall, or seconds of the step beside it.
    """
    # Imported late: only what fits needs SciPy.
    from scipy.optimize import nnls

    scale = np.maximum(features.max(axis=0), 1e-12)
    unit = max(float(target.max()), 1e-12)
    scaled, wanted = features / scale, target / unit
    trust = np.ones_like(target)
    for _ in range(REWEIGHTINGS):
        root = np.sqrt(weight * trust / weight.mean())
        found, _ = nnls(scaled * root[:, None], wanted * root)
        miss = np.abs(scaled @ found / np.maximum(wanted, 1e-12) - 1.0)
        usual = max(SIGMA_OF_MEDIAN * float(np.median(miss)), MISS_MIN_RATIO)
        trust = np.minimum(1.0, HUBER_SIGMAS * usual / np.maximum(miss, 1e-12))
    coefficients: _Floats = np.asarray(found, np.float64) * unit / scale
    return coefficients
