"""Compiled: seconds of a step, and which setting is worth most given the law.

The seconds are those of ``step_seconds``, with what a perturbation makes of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from specctl.simulate import step_seconds as plain
from specctl.simulate.acceptance import expected_tokens
from specctl.simulate.compiled import inner

__all__ = ["Scratch", "draft_seconds", "setting_seconds", "wave_factor", "weigh"]

step_seconds = njit(cache=True)(plain.step_seconds)


class Scratch(NamedTuple):
    """Room for one step's figures. By setting: expected ``tokens``, ``alone`` (seconds without prompts),
    ``seconds`` (with them) and ``values`` (tokens less what the seconds could have emitted)."""

    ends: npt.NDArray[np.int64]
    conditional: npt.NDArray[np.float64]
    chance: npt.NDArray[np.float64]
    by_level: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.float64]
    alone: npt.NDArray[np.float64]
    seconds: npt.NDArray[np.float64]
    values: npt.NDArray[np.float64]


@inner
def draft_seconds(steps, batch, depth, context):
    if depth == 0 or batch == 0:
        return steps.draft_at_zero_s
    one_pass_s = steps.draft_pass_s + steps.draft_pass_request_s * batch
    one_pass_s += steps.draft_pass_context_token_s * context
    return steps.draft_base_s + steps.draft_request_s * batch + one_pass_s * depth


@njit(cache=True)
def setting_seconds(costs, prepared, setting, batch, found, context, prefill, pairs):
    """Seconds of a step without its jitter and the wave.

    batch: decoding requests; found: of them, those that have drafts; context: their tokens; prefill: prompt
    tokens; pairs: of a prompt token and one before it. Means may be fractional.
    """
    width = prepared.width[setting]
    verified = batch + found * (width - 1)
    if prefill == 0 and costs.graph_tokens.size:
        at = np.searchsorted(costs.graph_tokens, verified)
        if at < costs.graph_tokens.size:
            verified = costs.graph_tokens[at]
    depth = prepared.depth[setting]
    seconds = step_seconds(
        costs.steps, float(batch), depth, width, float(verified), float(context), float(prefill), float(pairs)
    )
    return seconds * costs.cell_factor[batch, setting]


@njit(cache=True)
def wave_factor(wave, now_s):
    """The line between the whole seconds; starts anew after the last."""
    at = int(now_s)
    share = now_s - at
    return wave[at % wave.size] * (1.0 - share) + wave[(at + 1) % wave.size] * share


@inner
def weigh(law, costs, prepared, scratch, context, prefill, pairs):
    """Fill the figures of every setting for the requests in ``scratch.ends``; returns the rate of the best.

    The rate is the best expected tokens per second of a step without prompts at this batch and context. In
    such a step the largest value is 0, at the setting with the most tokens per second. In a step with prompts
    their seconds are spent in any case, and drafts compete for what is left.
    """
    tokens, alone, seconds = scratch.tokens, scratch.alone, scratch.seconds
    expected_tokens(
        law, prepared, scratch.conditional, scratch.ends, scratch.chance, scratch.by_level, tokens
    )
    batch = int(scratch.ends.sum())
    found, rate = batch * law.found_ratio, 0.0
    for s in range(tokens.size):
        alone[s] = setting_seconds(costs, prepared, s, batch, found, context, 0, 0.0)
        rate = max(rate, tokens[s] / alone[s])
    for s in range(tokens.size):
        seconds[s] = alone[s]
        if prefill > 0:
            seconds[s] = setting_seconds(costs, prepared, s, batch, found, context, prefill, pairs)
        scratch.values[s] = tokens[s] - rate * seconds[s]
    return rate
