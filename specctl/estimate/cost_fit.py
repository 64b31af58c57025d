"""Seconds of a step from what was counted: non-negative, and never falling with the tokens.

A step's seconds are a line in pieces over its tokens (verified and prompt tokens together), and shares for
each request, context token and prompt token. Each is taken up only where the measurement can tell it apart.
Of a mixture-of-experts target the expected number of distinct experts counts too, within the line's points.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from specctl.errors import SpecctlError
from specctl.estimate.experts import Experts
from specctl.estimate.piecewise import non_negative, over_pieces, with_points_between
from specctl.types import CellDelta

__all__ = ["FittedCosts", "fit_costs"]

_Floats = npt.NDArray[np.float64]

STEPS_MIN = 60
TOKENS_SPREAD_MIN = 1.0
DECODE_PIECES, PROMPT_PIECES = 4, 2
# A stretch of steps that took so many times the median of its kind is a stall of the machine.
STALL_RATIO = 3.0
# Two columns that go together by more than this cannot be told apart.
CORRELATION_MAX = 0.98
CELL_STEPS_MIN = 10
# Where half of the measurement misses the other half by more, it is no measurement.
MISS_MAX_RATIO = 0.3
JITTER_MAX_RATIO = 0.3
SECONDS_MIN = 1e-6


@dataclass(frozen=True)
class FittedCosts:
    """``forward``: (tokens, seconds). ``not_told``: costs that could not be told apart, left at 0.

    ``miss_ratio``: root mean square over the cells of decode-only steps, of (fitted - measured) / measured;
    ``held_out_miss_ratio``: the same for the half of the measurement that a fit did not see.
    """

    forward: tuple[tuple[int, float], ...]
    request_s: float
    context_token_s: float
    prefill_token_s: float
    prefill_step_s: float
    draft_base_s: float
    draft_request_s: float
    draft_pass_s: float
    draft_at_zero_s: float
    jitter_ratio: float
    miss_ratio: float
    held_out_miss_ratio: float
    steps: int
    stalled_steps: int
    not_told: tuple[str, ...]


@dataclass(frozen=True)
class _Points:
    """Means of one cell between two looks. ``weight``: steps."""

    weight: _Floats
    step_s: _Floats
    draft_s: _Floats
    tokens: _Floats
    batch: _Floats
    context: _Floats
    prefill: _Floats
    drafts: _Floats

    def where(self, mask: npt.NDArray[np.bool_]) -> _Points:
        return _Points(**{one.name: getattr(self, one.name)[mask] for one in fields(self)})


def fit_costs(
    rows: Sequence[CellDelta], *, is_profile: bool = True, experts: Experts | None = None
) -> FittedCosts:
    """``is_profile``: for a file, either half must foretell the other. Without it ``held_out_miss_ratio`` is
    ``miss_ratio``.

    Raises SpecctlError where too little was measured, or where it contradicts itself.
    """
    good, stalled_steps = _without_stalls([row for row in rows if row.steps and row.step_s > 0])
    points = _points(good)
    alone = points.tokens[points.prefill == 0]
    steps = int(points.weight[points.prefill == 0].sum())
    spread = float(np.ptp(alone)) if steps else 0.0
    if steps < STEPS_MIN or spread < TOKENS_SPREAD_MIN:
        raise SpecctlError(
            f"too little was measured: expected {STEPS_MIN} decode-only steps with different numbers of "
            f"tokens, got {steps} with {spread:.0f} tokens between the fewest and the most"
        )
    model = _Model.of(points, experts)
    miss = _miss(model, points)
    held_out_miss = _held_out_miss(points, model) if is_profile else miss
    return model.costs(
        jitter_ratio=_jitter([row for row in good if not row.has_prefill]),
        miss_ratio=miss,
        held_out_miss_ratio=held_out_miss,
        steps=steps,
        stalled_steps=stalled_steps,
    )


def _held_out_miss(points: _Points, model: _Model) -> float:
    """Raises SpecctlError where it is too large."""
    halves = np.arange(len(points.weight)) % 2 == 0
    held_out = [
        _miss(_Model.of(points.where(half), model.experts, model.knots), points.where(~half))
        for half in (halves, ~halves)
    ]
    held_out_miss = math.sqrt(sum(value**2 for value in held_out) / 2)
    if held_out_miss > MISS_MAX_RATIO:
        raise SpecctlError(
            f"the measurement contradicts itself: fitted to one half, the other half's steps take other "
            f"seconds by {held_out_miss:.0%}; expected at most {MISS_MAX_RATIO:.0%}. Measure for longer"
        )
    return held_out_miss


def _without_stalls(rows: list[CellDelta]) -> tuple[list[CellDelta], int]:
    """Rows at the level of their cell, and the steps of the others. Rows with prompts differ by nature."""
    by_cell: dict[tuple[int, int], list[float]] = {}
    for row in rows:
        if not row.has_prefill:
            key = (row.decode_batch_to, row.num_speculative_tokens)
            by_cell.setdefault(key, []).append(row.step_s / row.steps)
    medians = {key: float(np.median(values)) for key, values in by_cell.items()}
    good = [
        row
        for row in rows
        if row.has_prefill
        or row.step_s / row.steps <= STALL_RATIO * medians[row.decode_batch_to, row.num_speculative_tokens]
    ]
    return good, sum(row.steps for row in rows) - sum(row.steps for row in good)


def _points(rows: Sequence[CellDelta]) -> _Points:
    def mean(name: str) -> _Floats:
        return np.array([getattr(row, name) / row.steps for row in rows], np.float64)

    prefill = mean("prefill_tokens")
    return _Points(
        weight=np.array([row.steps for row in rows], np.float64),
        step_s=mean("step_s"),
        draft_s=mean("draft_s"),
        tokens=mean("verified_tokens") + prefill,
        batch=mean("request_steps"),
        context=mean("context_tokens"),
        prefill=prefill,
        drafts=np.array([row.num_speculative_tokens for row in rows], np.float64),
    )


@dataclass(frozen=True)
class _Model:
    """``pieces``: seconds at 1 token, what each piece between two knots adds, and what each expert does."""

    experts: Experts | None
    knots: _Floats
    pieces: _Floats
    shares: dict[str, float]
    draft: dict[str, float]
    not_told: tuple[str, ...]

    @classmethod
    def of(cls, points: _Points, experts: Experts | None, knots: _Floats | None = None) -> _Model:
        draft = _fit_draft(points)
        # Without the seconds of drafting told apart, they are in the step's.
        forward_s = np.maximum(points.step_s - points.draft_s, SECONDS_MIN)
        knots = _knots(points) if knots is None else knots
        columns, not_told = _columns(points, is_draft_told=bool(draft))
        forward = over_pieces(points.tokens, knots, experts)
        features = np.column_stack([forward, *columns.values()])
        fitted = non_negative(features, forward_s, points.weight / points.step_s**2)
        pieces, rest = np.split(fitted, [forward.shape[1]])
        shares = dict(zip(columns, map(float, rest), strict=True))
        if "draft base_s" in shares:
            draft = {"base_s": shares.pop("draft base_s")}
        model = cls(experts, knots, pieces, shares, draft, tuple(not_told))
        return model._with_sums_of(points)

    def _with_sums_of(self, points: _Points) -> _Model:
        """Steps without prompts add up to their measured seconds, and then those with prompts, by what a
        prompt's token costs.

        A robust fit goes through the usual steps. Slow ones that are no stalls are spent all the same, and a
        sum is right where seconds were only counted to the step beside.
        """
        alone, mixed = points.where(points.prefill == 0), points.where(points.prefill > 0)
        measured_s, fitted_s = _sums(self, alone)
        model = self._times(measured_s / max(fitted_s, SECONDS_MIN))
        measured_s, fitted_s = _sums(model, mixed)
        tokens = float(mixed.weight @ mixed.prefill)
        if not tokens:
            return model
        told_s = model.shares.get(_PROMPT, 0.0) + (measured_s - fitted_s) / tokens
        shares = {**model.shares, _PROMPT: max(told_s, 0.0)}
        not_told = tuple(name for name in model.not_told if name != _PROMPT or told_s <= 0.0)
        return replace(model, shares=shares, not_told=not_told)

    def _times(self, ratio: float) -> _Model:
        def scaled(costs: dict[str, float]) -> dict[str, float]:
            return {name: ratio * value for name, value in costs.items()}

        return replace(self, pieces=ratio * self.pieces, shares=scaled(self.shares), draft=scaled(self.draft))

    def forward_s(self, tokens: _Floats) -> _Floats:
        return np.asarray(over_pieces(tokens, self.knots, self.experts) @ self.pieces)

    def predict_s(self, points: _Points) -> _Floats:
        seconds = self.forward_s(points.tokens)
        for name, value in self.shares.items():
            seconds = seconds + value * _COLUMNS[name](points)
        for name, value in self.draft.items():
            seconds = seconds + value * _DRAFT_COLUMNS[name](points)
        return np.asarray(seconds)

    def costs(
        self,
        *,
        jitter_ratio: float,
        miss_ratio: float,
        held_out_miss_ratio: float,
        steps: int,
        stalled_steps: int,
    ) -> FittedCosts:
        knots = self.knots if self.experts is None else with_points_between(self.knots)
        forward = [(round(float(k)), float(s)) for k, s in zip(knots, self.forward_s(knots), strict=True)]
        return FittedCosts(
            forward=tuple((tokens, max(seconds, SECONDS_MIN)) for tokens, seconds in forward),
            request_s=self.shares.get("request_s", 0.0),
            context_token_s=self.shares.get("context_token_s", 0.0),
            prefill_token_s=self.shares.get("prefill_token_s", 0.0),
            prefill_step_s=self.shares.get("prefill_step_s", 0.0),
            draft_base_s=self.draft.get("base_s", 0.0),
            draft_request_s=self.draft.get("request_s", 0.0),
            draft_pass_s=self.draft.get("pass_s", 0.0),
            draft_at_zero_s=self.draft.get("at_zero_s", 0.0),
            jitter_ratio=jitter_ratio,
            miss_ratio=miss_ratio,
            held_out_miss_ratio=held_out_miss_ratio,
            steps=steps,
            stalled_steps=stalled_steps,
            not_told=self.not_told,
        )


_PROMPT = "prefill_token_s"
_COLUMNS: dict[str, Callable[[_Points], _Floats]] = {
    "request_s": lambda p: p.batch,
    "context_token_s": lambda p: p.context,
    _PROMPT: lambda p: p.prefill,
    "prefill_step_s": lambda p: (p.prefill > 0).astype(float),
    "draft base_s": lambda p: (p.drafts > 0).astype(float),
}
_DRAFT_COLUMNS: dict[str, Callable[[_Points], _Floats]] = {
    "base_s": lambda p: (p.drafts > 0).astype(float),
    "request_s": lambda p: (p.drafts > 0) * p.batch,
    "pass_s": lambda p: p.drafts,
    "at_zero_s": lambda p: (p.drafts == 0).astype(float),
}


def _fit_draft(points: _Points) -> dict[str, float]:
    """Seconds of drafting, where the engine tells them apart (it does so where steps are synchronous)."""
    if not points.draft_s.any():
        return {}
    features = np.column_stack([column(points) for column in _DRAFT_COLUMNS.values()])
    fitted = non_negative(features, points.draft_s, points.weight)
    return dict(zip(_DRAFT_COLUMNS, map(float, fitted), strict=True))


def _columns(points: _Points, *, is_draft_told: bool) -> tuple[dict[str, _Floats], list[str]]:
    """Columns beside the tokens that vary, and not as one already taken; and the names of the others."""
    taken: list[_Floats] = [points.tokens]
    columns: dict[str, _Floats] = {}
    not_told: list[str] = []
    for name, column in _COLUMNS.items():
        if name == "draft base_s" and is_draft_told:
            continue
        values = column(points)
        if np.ptp(values) > 0 and all(abs(_correlation(values, other)) < CORRELATION_MAX for other in taken):
            columns[name] = values
            taken.append(values)
        else:
            not_told.append(name)
    return columns, not_told


def _correlation(one: _Floats, other: _Floats) -> float:
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])


def _knots(points: _Points) -> _Floats:
    """1, quantiles of the tokens met, and the most: whole numbers, each at least a fifth over the last.

    Steps without prompts have knots of their own: thousands of a prompt's tokens must not make one line of
    the few that decoding has.
    """
    with_prompts = points.prefill > 0
    wanted = np.quantile(points.tokens[~with_prompts], np.linspace(0, 1, DECODE_PIECES + 1)[1:])
    if with_prompts.any():
        more = np.quantile(points.tokens[with_prompts], np.linspace(0, 1, PROMPT_PIECES + 1)[1:])
        wanted = np.concatenate((wanted, more[more > wanted[-1]]))
    knots = [1.0]
    for tokens in np.ceil(wanted):
        if tokens >= max(knots[-1] * 1.2, knots[-1] + 1):
            knots.append(float(tokens))
    return np.array(knots)


def _sums(model: _Model, points: _Points) -> tuple[float, float]:
    """Seconds of all steps, measured and fitted; of a stall only as much as is none."""
    fitted = model.predict_s(points)
    measured = np.minimum(points.step_s, STALL_RATIO * fitted)
    return float(points.weight @ measured), float(points.weight @ fitted)


def _miss(model: _Model, points: _Points) -> float:
    """Over the cells of decode-only steps with enough of them, weighted by steps."""
    predicted = model.predict_s(points)
    cells: dict[tuple[float, float], list[float]] = {}
    for i in np.flatnonzero(points.prefill == 0):
        sums = cells.setdefault((round(points.batch[i]), points.drafts[i]), [0.0, 0.0, 0.0])
        weight = points.weight[i]
        sums[0] += weight
        sums[1] += weight * points.step_s[i]
        sums[2] += weight * predicted[i]
    told = [sums for sums in cells.values() if sums[0] >= CELL_STEPS_MIN] or list(cells.values())
    total = sum(sums[0] for sums in told)
    return math.sqrt(sum(w * (p / s - 1.0) ** 2 for w, s, p in told) / total) if total else 0.0


def _jitter(rows: Sequence[CellDelta]) -> float:
    """Spread of steps within a row, beside what their tokens explain, as a share of the mean."""
    steps = left = 0.0
    for row in rows:
        if row.steps < 3:
            continue
        mean_s, mean_v = row.step_s / row.steps, row.verified_tokens / row.steps
        var_s = row.step_s_squared / row.steps - mean_s**2
        var_v = row.verified_tokens_squared / row.steps - mean_v**2
        cov = row.step_s_by_verified_tokens / row.steps - mean_s * mean_v
        explained = cov**2 / var_v if var_v > 1e-6 else 0.0
        left += row.steps * max(var_s - explained, 0.0) / mean_s**2
        steps += row.steps
    return min(math.sqrt(left / steps), JITTER_MAX_RATIO) if steps else 0.0
