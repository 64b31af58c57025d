"""Compiled: seconds of a step, and the number of drafts that is worth most given the law."""

from __future__ import annotations

import numpy as np
from numba import njit

from specctl.simulate.state import (
    CONTEXT,
    DRAFT_BASE,
    DRAFT_PASS,
    DRAFT_REQUEST,
    DRAFT_ZERO,
    GRAPH_TOKENS,
    PAIR,
    PREFILL,
    PREFILL_STEP,
    REQUEST,
    UNGRAPHED,
)

__all__ = ["best_drafts", "draft_seconds", "law_bin", "step_seconds", "worth"]


@njit(cache=True)
def _line(x, xs, ys):
    """Piecewise linear through (xs, ys), continued on both sides by the outer pieces."""
    at = np.searchsorted(xs, x)
    at = min(max(at, 1), xs.size - 1)
    low, high = xs[at - 1], xs[at]
    return ys[at - 1] + (ys[at] - ys[at - 1]) * (x - low) / (high - low)


@njit(cache=True)
def draft_seconds(scalars, batch, drafts):
    if drafts == 0 or batch == 0:
        return scalars[DRAFT_ZERO]
    return scalars[DRAFT_BASE] + scalars[DRAFT_REQUEST] * batch + scalars[DRAFT_PASS] * drafts


@njit(cache=True)
def step_seconds(costs, limits, batch, drafts, context, prefill, pairs):
    """Seconds of a step without its jitter.

    batch: decoding requests; context: their tokens; prefill: prompt tokens; pairs: of a prompt token and one
    before it.
    """
    scalars = costs.scalars
    tokens = batch * (1 + drafts)
    least_s = 0.0
    if prefill == 0:
        at = np.searchsorted(costs.graph_requests, batch)
        padded = costs.graph_requests[at] if at < costs.graph_requests.size else batch
        if padded * (1 + drafts) <= limits[GRAPH_TOKENS]:
            tokens = padded * (1 + drafts)
        else:
            least_s = scalars[UNGRAPHED]
    seconds = _line(float(tokens + prefill), costs.tokens, costs.seconds)
    seconds += scalars[REQUEST] * batch + scalars[CONTEXT] * context
    seconds += scalars[PREFILL] * prefill + scalars[PAIR] * pairs
    if prefill > 0:
        seconds += scalars[PREFILL_STEP]
    return max(seconds, least_s) + draft_seconds(scalars, batch, drafts)


@njit(cache=True)
def law_bin(law, now_s):
    at = int(now_s / law.bin_s)
    bins = law.conditional.shape[0]
    return at % bins if law.is_repeated else min(at, bins - 1)


@njit(cache=True)
def _expected(conditional, members, tokens):
    """tokens[k]: expected emitted tokens of a step with k drafts; members: requests by class."""
    tokens[0] = members.sum()
    for k in range(1, tokens.size):
        tokens[k] = tokens[k - 1]
        for kind in range(members.size):
            survival = 1.0
            for j in range(k):
                survival *= conditional[kind, j]
            tokens[k] += members[kind] * survival


@njit(cache=True)
def worth(costs, limits, conditional, members, context, prefill, pairs, values):
    """Fills values[k]: expected tokens less what the step's seconds could have emitted; returns that rate.

    The rate is the best expected tokens per second of a step without prompts at this batch and context. In
    such a step the largest value is 0, at the number of drafts with the most tokens per second. In a step
    with prompts the seconds of the prompts are spent in any case, and drafts compete for what is left.
    """
    tokens = np.zeros(values.size)
    _expected(conditional, members, tokens)
    batch = int(members.sum())
    rate = 0.0
    for k in range(values.size):
        seconds = step_seconds(costs, limits, batch, k, context, 0, 0.0)
        rate = max(rate, tokens[k] / seconds)
    for k in range(values.size):
        values[k] = tokens[k] - rate * step_seconds(costs, limits, batch, k, context, prefill, pairs)
    return rate


@njit(cache=True)
def best_drafts(values):
    """The number of drafts of the largest value; the smallest of equal ones."""
    return int(np.argmax(values))
