"""Seconds of a step from what was counted: linear regression without negative coefficients (scikit-learn).

Features are hinges of a step's tokens (verified and prompt tokens together), requests, context, prompts, and
passes of a draft model with their requests and context. A feature that the others explain is left out and
named: what it costs is not identified.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LinearRegression

from specctl.contract.telemetry import TelemetryCell
from specctl.errors import SpecctlError

__all__ = ["FittedCosts", "fit_costs"]

_Floats = npt.NDArray[np.float64]
_Bools = npt.NDArray[np.bool_]
TERMS = (
    "request_s", "context_token_s", "prefill_token_s", "prefill_step_s",
    "draft.base_s", "draft.pass_s", "draft.pass_request_s", "draft.pass_context_token_s",
)  # fmt: skip
PROMPT = TERMS.index("prefill_token_s") - len(TERMS)
STEPS_MIN, KIND_STEPS_MIN = 60, 10
DECODE_PIECES, PROMPT_PIECES, HINGE_RATIO, EXPERT_POINTS = 4, 2, 1.2, 60
STALL_RATIO = 3.0
"""Steps that took so many times the usual seconds are a stall of the machine."""
EXPLAINED_MAX = 0.96
"""A feature of which the others explain more (R squared) is not identified."""
MISS_MAX_RATIO, JITTER_MAX_RATIO = 0.3, 0.3
HUBER_SIGMAS, SIGMA_OF_MEDIAN, MISS_MIN_RATIO, REWEIGHTINGS = 1.345, 1.4826, 0.01, 10
SECONDS_MIN = 1e-6


@dataclass(frozen=True)
class FittedCosts:
    """``forward``: (tokens, seconds). ``terms``: the other seconds, by their key in a profile.

    ``miss_ratio``: root mean square, over kinds of decode-only steps, of (fitted - measured) / measured;
    ``held_out_miss_ratio``: the same for the half of the measurement that a fit did not see.
    """

    forward: tuple[tuple[int, float], ...]
    terms: dict[str, float]
    jitter_ratio: float
    miss_ratio: float
    held_out_miss_ratio: float
    steps: int
    stalled_steps: int
    unidentified: tuple[str, ...]


class _Steps(NamedTuple):
    """Means of a cell between two polls. ``kind``: number of its bucket and drafts."""

    weight: _Floats  # steps
    step_s: _Floats
    tokens: _Floats
    terms: _Floats  # [step, TERMS]
    spread: _Floats  # variance of the seconds over their squared mean, beside what the tokens explain
    kind: npt.NDArray[np.int64]
    is_alone: _Bools  # without prompts

    @classmethod
    def of(cls, rows: Sequence[TelemetryCell]) -> _Steps:
        names = ("step_s", "verified_tokens", "request_steps", "context_tokens", "prefill_tokens",
                 "step_s_squared", "verified_tokens_squared", "step_s_by_verified_tokens")  # fmt: skip
        count = np.array([row.steps for row in rows], np.float64)
        sums = np.array([[getattr(row, name) for name in names] for row in rows], np.float64)
        step_s, verified, batch, context, prefill, ss, vv, sv = sums.reshape(-1, 8).T / count
        kinds = np.array([(row.decode_batch_to, row.num_speculative_tokens) for row in rows]).reshape(-1, 2)
        _, kind = np.unique(kinds, axis=0, return_inverse=True)
        has_drafts, drafts = kinds[:, 1] > 0, kinds[:, 1]
        passes = [drafts, drafts * batch, drafts * context]
        terms = [batch, context, prefill, prefill > 0, has_drafts, *passes]
        explained = (sv - step_s * verified) ** 2 / np.maximum(vv - verified**2, 1e-6)
        spread = np.maximum(ss - step_s**2 - explained, 0.0) / step_s**2
        tokens = verified + prefill
        return cls(count, step_s, tokens, np.column_stack(terms), spread, kind, prefill == 0)

    def where(self, mask: _Bools) -> _Steps:
        return _Steps._make(values[mask] for values in self)


def fit_costs(rows: Sequence[TelemetryCell], experts: tuple[int, int] | None = None) -> FittedCosts:
    """``experts``: of a layer, and of a token. Raises SpecctlError for too few or contradictory steps."""
    steps = _Steps.of([row for row in rows if row.steps and row.step_s > 0])
    alone = steps.where(steps.is_alone)
    variety = float(np.ptp(alone.tokens)) if len(alone.tokens) else 0.0
    if alone.weight.sum() < STEPS_MIN or variety < 1:
        raise SpecctlError(
            f"too little was measured: expected {STEPS_MIN} decode-only steps with different numbers of "
            f"tokens, got {alone.weight.sum():.0f} with {variety:.0f} tokens between the fewest and the most"
        )
    hinges = _hinges(steps)
    features = np.column_stack([_of_tokens(steps.tokens, hinges, experts), steps.terms])
    found, unidentified = _fitted(steps, features)
    # Between two hinges the experts of a mixture bend the line.
    more = np.ceil(np.geomspace(1, hinges[-1], EXPERT_POINTS)) if experts else hinges
    points = np.union1d(hinges, more.clip(max=hinges[-1]))
    seconds = _of_tokens(points, hinges, experts) @ found[: -len(TERMS)]
    usual = steps.is_alone & (steps.step_s <= STALL_RATIO * (features @ found))
    several = steps.where(usual & (steps.weight >= 3))
    return FittedCosts(
        tuple(zip(map(round, points.tolist()), seconds.clip(min=SECONDS_MIN).tolist(), strict=True)),
        dict(zip(TERMS, found[-len(TERMS) :].tolist(), strict=True)),
        min(math.sqrt(several.weight @ several.spread / max(several.weight.sum(), 1.0)), JITTER_MAX_RATIO),
        _miss(steps, features @ found),
        _held_out_miss(steps, features),
        int(steps.weight[usual].sum()),
        int(steps.weight[steps.is_alone & ~usual].sum()),
        unidentified,
    )


def _held_out_miss(steps: _Steps, features: _Floats) -> float:
    """Each half predicts the other. Raises SpecctlError where it cannot."""
    half = np.arange(len(steps.weight)) % 2 == 0
    misses = [
        _miss(steps.where(~seen), features[~seen] @ _fitted(steps.where(seen), features[seen])[0])
        for seen in (half, ~half)
    ]
    miss = math.sqrt(sum(one**2 for one in misses) / 2)
    if miss > MISS_MAX_RATIO:
        raise SpecctlError(
            f"the measurement contradicts itself: fitted to one half, the other half's steps take other "
            f"seconds by {miss:.0%}; expected at most {MISS_MAX_RATIO:.0%}. Measure for longer, or with more "
            "requests where --requests bounds it"
        )
    return miss


def _hinges(steps: _Steps) -> _Floats:
    """1, quantiles of the tokens met, and the most. Decode-only steps have their own: thousands of a
    prompt's tokens must not make one line of the few that decoding has.
    """
    alone, mixed = steps.tokens[steps.is_alone], steps.tokens[~steps.is_alone]
    wanted = np.quantile(alone, np.linspace(0, 1, DECODE_PIECES + 1)[1:])
    if len(mixed):
        more = np.quantile(mixed, np.linspace(0, 1, PROMPT_PIECES + 1)[1:])
        wanted = np.concatenate((wanted, more[more > wanted[-1]]))
    hinges = [1.0]
    for tokens in np.ceil(wanted).tolist():
        if tokens >= max(hinges[-1] * HINGE_RATIO, hinges[-1] + 1):
            hinges.append(tokens)
    return np.array(hinges)


def _of_tokens(tokens: _Floats, hinges: _Floats, experts: tuple[int, int] | None) -> _Floats:
    """[step, feature]: 1, how far each piece is passed (the last has no end), and the expected number of
    distinct experts that are read (Huang et al. 2025, "MoESD", arXiv 2505.19645).
    """
    ends = np.append(np.diff(hinges)[:-1], np.inf)
    columns = [np.ones_like(tokens), *np.clip(tokens - hinges[:-1, None], 0.0, ends[:, None])]
    if experts is not None:
        columns.append(experts[0] * (1.0 - (1.0 - experts[1] / experts[0]) ** tokens))
    return np.column_stack(columns)


def _fitted(steps: _Steps, features: _Floats) -> tuple[_Floats, tuple[str, ...]]:
    """Seconds of each feature, and the names of the terms that are not identified.

    Rows far from the fit weigh less (Huber 1964): a mean over few steps may hold seconds of the next.
    """
    every = range(features.shape[1])
    taken = list(every[: -len(TERMS)])
    for at in every[-len(TERMS) :]:
        before, values = features[:, taken], features[:, at]
        explained = LinearRegression().fit(before, values).score(before, values)
        taken += [at] if explained < EXPLAINED_MAX else []
    scale, trust = np.maximum(features[:, taken].max(axis=0), 1e-12), np.ones_like(steps.weight)
    relative = features[:, taken] / scale / steps.step_s[:, None]
    for _ in range(REWEIGHTINGS):
        fit = LinearRegression(positive=True, fit_intercept=False)
        fit.fit(relative, np.ones_like(trust), sample_weight=steps.weight * trust)
        miss = np.abs(fit.predict(relative) - 1.0)
        usual = max(SIGMA_OF_MEDIAN * float(np.median(miss)), MISS_MIN_RATIO)
        trust = np.minimum(1.0, HUBER_SIGMAS * usual / np.maximum(miss, 1e-12))
    found = np.zeros(features.shape[1])
    found[taken] = fit.coef_ / scale
    found = _with_sums(steps, features, found)
    left_out = set(every) - set(taken) - set(np.flatnonzero(found).tolist())
    return found, tuple(TERMS[at - len(every)] for at in sorted(left_out))


def _with_sums(steps: _Steps, features: _Floats, found: _Floats) -> _Floats:
    """Scaled to the sum of the steps without prompts, then to that of the others by what a prompt's token
    costs: slow steps that are no stalls weigh little in the fit, and are spent all the same.
    """
    fitted_s = features @ found
    count = steps.weight * (steps.step_s <= STALL_RATIO * fitted_s)
    alone, mixed = count * steps.is_alone, count * ~steps.is_alone
    ratio = (alone @ steps.step_s) / max(float(alone @ fitted_s), SECONDS_MIN)
    left_s = mixed @ (steps.step_s - ratio * fitted_s)
    found = ratio * found
    found[PROMPT] = max(found[PROMPT] + left_s / max(float(mixed @ features[:, PROMPT]), 1.0), 0.0)
    return found


def _miss(steps: _Steps, fitted_s: _Floats) -> float:
    """Over the kinds of decode-only steps with enough of them, weighted by steps."""
    usual = steps.weight * (steps.is_alone & (steps.step_s <= STALL_RATIO * fitted_s))
    sums = (usual, usual * steps.step_s, usual * fitted_s)
    count, measured, fitted = (np.bincount(steps.kind, one) for one in sums)
    enough = count >= max(min(KIND_STEPS_MIN, count.max()), 1.0)
    miss = fitted[enough] / measured[enough] - 1.0
    return math.sqrt(np.average(miss**2, weights=count[enough])) if enough.any() else 0.0
