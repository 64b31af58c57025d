"""Compiled: luck from a counter, so that every arm meets the same luck.

Whether the draft for a request's n-th output token is accepted depends on seed, request and n alone (and on
the law).
"""

from __future__ import annotations

import numpy as np
from numba import njit

from specctl.simulate.compiled import inner

__all__ = ["class_of", "classes_of", "finds", "jitter", "stalls", "uniform"]

# Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014): SplitMix64's
# finaliser.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11))
_TO_UNIT = 2.0**-53
# Streams of luck beside the drafts'.
_CLASS_STREAM, _JITTER_STREAM, _STALL_STREAM = -1, -2, -5
# Of a request: one for each stretch of its output.
_FIND_STREAM = -16


@inner
def _mixed(x):
    x = (x ^ (x >> _SHIFTS[0])) * _MIX_1
    x = (x ^ (x >> _SHIFTS[1])) * _MIX_2
    return x ^ (x >> _SHIFTS[2])


@njit(cache=True)
def uniform(seed, first, second):
    """A number from 0 to 1 that depends on the three alone."""
    x = _mixed(np.uint64(seed) + _GOLDEN)
    x = _mixed(x ^ (np.uint64(first) * _GOLDEN))
    x = _mixed(x ^ (np.uint64(second) * _MIX_1))
    return float(x >> _SHIFTS[3]) * _TO_UNIT


@inner
def class_of(seed, shares, r):
    """The class of request r, drawn from ``shares``."""
    luck, k = uniform(seed, r, _CLASS_STREAM), 0
    while k < shares.size - 1 and luck >= shares[k]:
        luck -= shares[k]
        k += 1
    return k


@njit(cache=True)
def classes_of(seed, shares, row, kind):
    """Draw the class of every request r from its shares[row[r]]."""
    for r in range(kind.size):
        kind[r] = class_of(seed, shares[row[r]], r)


@inner
def finds(ratio, stretch_tokens, seed, r, first):
    """Whether there is a draft for request r at its output token ``first``: for all of a stretch, or none."""
    return ratio >= 1.0 or uniform(seed, r, _FIND_STREAM - first // stretch_tokens) < ratio


@inner
def jitter(ratio, seed, step):
    """Factor with the mean 1 and this deviation: of a sum of three uniforms, whose deviation is 1/2."""
    if ratio == 0.0:
        return 1.0
    luck = uniform(seed, step, _JITTER_STREAM) + uniform(seed, step, _JITTER_STREAM - 1)
    return 1.0 + 2.0 * ratio * (luck + uniform(seed, step, _JITTER_STREAM - 2) - 1.5)


@inner
def stalls(step_s, every_s, seed, step):
    """Whether a step stalls: once in ``every_s`` seconds of steps in the mean."""
    return uniform(seed, step, _STALL_STREAM) < step_s / every_s
