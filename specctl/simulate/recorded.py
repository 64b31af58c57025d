"""A recorded telemetry log -> arrivals, lengths and acceptance for the simulator.

The counts of a log are exact, single requests are not in it. Arrivals are drawn evenly within each window of
the log and moved ahead by the window's mean wait for a first token. Lengths are drawn from the log's
histograms and scaled to the window's tokens; requests are taken to finish in the order of their starts. So
go prompts too where an engine counts those of finished requests only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specctl.engine_api.stock_metrics import LengthCounts
from specctl.errors import SimulationInputError
from specctl.record.reader import read_lines
from specctl.simulate.recorded_windows import LoadWindow, Recorded, StepWindow, windows_of
from specctl.simulate.scenario import DAY_S, Scenario
from specctl.simulate.trace import GAP_S, TOKENS_MAX, Trace

__all__ = ["RECORDED", "RecordedLoad", "load_recorded"]

RECORDED = "recorded"
REQUESTS_MAX = 5_000_000
# Laws hold for at least so long, and are at most so many.
LAW_S = 30.0
LAWS_MAX = 60
# Request-steps that a law rests on, and times that a position was reached.
TRIALS_MIN = 50
REACHED_MIN = 20
POSITIONS_MAX = 64
# Lengths beyond the last edge of a histogram: up to so many times it, before they are scaled.
BEYOND_RATIO = 2.0
_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RecordedLoad:
    """``scenario`` None: too little was drafted; ``why_no_scenario`` says how little."""

    trace: Trace
    scenario: Scenario | None
    why_no_scenario: str | None = None


def load_recorded(path: Path, *, seed: int) -> RecordedLoad:
    """The same seed gives the same requests. Raises SimulationInputError."""
    recorded = Recorded()
    windows_of(read_lines(path, recorded.skipped), recorded)
    _check(path, recorded)
    rng = np.random.default_rng(seed)
    parts = [_requests(chain, recorded, rng) for chain in _chains(recorded.loads)]
    arrival_s, prompt, output = (np.concatenate(part) for part in zip(*parts, strict=True))
    order = np.argsort(arrival_s, kind="stable")
    arrival_s = arrival_s[order]
    first_s = float(arrival_s[0])
    trace = Trace(
        arrival_s=arrival_s - first_s,
        prompt_tokens=prompt[order],
        output_tokens=output[order],
        skipped=dict(recorded.skipped),
        gaps=int((np.diff(arrival_s) > GAP_S).sum()),
        notes=tuple(f"{count} x {why}" for why, count in recorded.notes.items()),
    )
    scenario, why = _scenario(recorded.steps, first_s)
    return RecordedLoad(trace, scenario, why)


def _check(path: Path, recorded: Recorded) -> None:
    """Raises SimulationInputError for a log that holds too little of a load."""
    started = sum(window.started for window in recorded.loads)
    finished = sum(window.finished for window in recorded.loads)
    seen = f"in {len(recorded.loads)} windows ({dict(recorded.skipped) or 'nothing skipped'})"
    if not recorded.loads and recorded.why_no_load is not None:
        raise SimulationInputError(
            f"{path}: expected the load of a server, got none {seen}: {recorded.why_no_load}"
        )
    if not 0 < started <= REQUESTS_MAX:
        raise SimulationInputError(
            f"{path}: expected 1 to {REQUESTS_MAX} requests that started while it was recorded, "
            f"got {started} {seen}"
        )
    if not finished:
        raise SimulationInputError(
            f"{path}: expected a request that finished while it was recorded, got none {seen}: "
            "the lengths of outputs are not known"
        )


def _chains(windows: Sequence[LoadWindow]) -> list[list[LoadWindow]]:
    """Windows that follow on one another."""
    chains: list[list[LoadWindow]] = []
    for window in windows:
        if not window.continues or not chains:
            chains.append([])
        chains[-1].append(window)
    return chains


def _requests(
    chain: Sequence[LoadWindow], recorded: Recorded, rng: np.random.Generator
) -> tuple[_Floats, _Ints, _Ints]:
    """Arrivals, prompt and output tokens of the requests that started, in the order of their windows."""
    started = np.array([window.started for window in chain])
    of_window = np.repeat(np.arange(len(chain)), started)
    starts = np.array([window.start_s for window in chain])[of_window]
    spans = np.array([window.end_s - window.start_s for window in chain])[of_window]
    waits = np.array([window.wait_s / max(window.started, 1) for window in chain])[of_window]
    arrival_s = starts + rng.random(len(starts)) * spans - waits
    load = recorded.last_load
    assert load is not None, "a window has two loads"
    finish = _finishes(chain, len(starts))
    if chain[0].is_by_finish:
        alike = [window for window in recorded.loads if window.is_by_finish]
        means = _means(chain, alike, "prompt_tokens")
        prompt = _lengths(load.prompt_lengths, finish, means, rng)
    else:
        started_means = [window.prompt_tokens / max(window.started, 1) for window in chain]
        prompt = _lengths(load.prompt_lengths, of_window, np.array(started_means), rng)
    output = _lengths(load.output_lengths, finish, _means(chain, recorded.loads, "output_tokens"), rng)
    return arrival_s, prompt, output


def _finishes(chain: Sequence[LoadWindow], requests: int) -> _Ints:
    """Place in the chain of the window in which each request finishes, when requests finish in the order of
    their starts; its length for those that the log does not see finish."""
    of_finish = np.repeat(np.arange(len(chain)), [window.finished for window in chain])
    ranks = np.arange(requests) + chain[0].in_flight
    is_seen = ranks < len(of_finish)
    places = np.full(requests, len(chain), np.int64)
    places[is_seen] = of_finish[ranks[is_seen]]
    return places


def _means(chain: Sequence[LoadWindow], everything: Sequence[LoadWindow], tokens: str) -> _Floats:
    """Tokens of a request that finishes, by window of the chain; then of all windows."""
    finished = sum(window.finished for window in everything)
    overall = sum(getattr(window, tokens) for window in everything) / max(finished, 1)
    return np.array([*(getattr(window, tokens) / max(window.finished, 1) for window in chain), overall])


def _lengths(shape: LengthCounts | None, places: _Ints, means: _Floats, rng: np.random.Generator) -> _Ints:
    """A length for each place, spread as ``shape`` is; those of one place have its mean."""
    draws = _draws(shape, len(places), rng)
    sums = np.bincount(places, draws, minlength=len(means))
    counts = np.bincount(places, minlength=len(means))
    factors = means * counts / np.maximum(sums, 1e-9)
    lengths: _Ints = np.clip(np.rint(draws * factors[places]), 1, TOKENS_MAX).astype(np.int64)
    return lengths


def _draws(shape: LengthCounts | None, size: int, rng: np.random.Generator) -> _Floats:
    """By the histogram, and evenly in the logarithm within an edge and the next; all equal without one."""
    if shape is None or not sum(shape.counts) or len(shape.counts) != len(shape.upper_tokens) + 1:
        return np.ones(size)
    uppers = np.maximum(np.array([*shape.upper_tokens, shape.upper_tokens[-1] * BEYOND_RATIO]), 1.0)
    lowers = np.concatenate([[1.0], uppers[:-1]])
    shares = np.array(shape.counts) / sum(shape.counts)
    edge = rng.choice(len(shares), size, p=shares)
    return np.asarray(lowers[edge] * (uppers[edge] / lowers[edge]) ** rng.random(size))


def _scenario(steps: Sequence[StepWindow], first_s: float) -> tuple[Scenario | None, str | None]:
    """One class, with a law for every stretch of the log that has enough drafts; and why there is none."""
    if not steps:
        return None, "the log holds no telemetry"
    stretch_s = max(LAW_S, (steps[-1].end_s - steps[0].start_s) / LAWS_MAX)
    points: list[tuple[float, list[float]]] = []
    trials = 0
    for number, group in groupby(steps, lambda step: int((step.start_s - steps[0].start_s) / stretch_s)):
        reached, accepted = _trials(list(group))
        trials += int(reached[0])
        law = _law(reached, accepted)
        from_s = steps[0].start_s + number * stretch_s - first_s if points else 0.0
        # What held before the first arrival is the last law before it.
        if law and points and from_s <= points[-1][0]:
            points[-1] = points[-1][0], law
        elif law:
            points.append((from_s, law))
    if not points:
        return None, f"expected {TRIALS_MIN} drafts within {stretch_s:g} s, got {trials} in all of the log"
    laws = [{"from_s": from_s, "conditional_at": law} for from_s, law in points if from_s <= DAY_S]
    fields = {"name": RECORDED, "classes": [{"name": "all", "share": 1.0, "points": laws}]}
    return Scenario.model_validate(fields), None


def _trials(steps: Sequence[StepWindow]) -> tuple[_Floats, _Floats]:
    """[j]: times that position j was asked for and reached, and accepted. A step of a request without a draft
    counts as one whose first token was not accepted: the simulator's drafts are always full.

    From shadow drafts where there are enough: those do not depend on the table.
    """
    reached, accepted = np.zeros(POSITIONS_MAX + 1), np.zeros(POSITIONS_MAX + 1)
    shadows = [step.shadow for step in steps if step.shadow is not None]
    if sum(shadow.drafts for shadow in shadows) >= TRIALS_MIN:
        for shadow in shadows:
            _add(reached, accepted, shadow.drafts, shadow.accepted_at)
        return reached, accepted
    for cell in (cell for step in steps for cell in step.cells):
        if cell.num_speculative_tokens > 0:
            _add(reached, accepted, cell.request_steps, cell.accepted_at[: cell.num_speculative_tokens])
    return reached, accepted


def _add(reached: _Floats, accepted: _Floats, drafts: int, accepted_at: Sequence[int]) -> None:
    size = min(len(accepted_at), POSITIONS_MAX)
    reached[:size] += [drafts, *accepted_at[: size - 1]] if size else []
    accepted[:size] += accepted_at[:size]


def _law(reached: _Floats, accepted: _Floats) -> list[float]:
    """Chances by position, as far as there are enough trials; empty: not even of the first."""
    law: list[float] = []
    for j in range(POSITIONS_MAX):
        if reached[j] < (REACHED_MIN if j else TRIALS_MIN):
            break
        law.append(round(float(min(accepted[j] / reached[j], 1.0)), 6))
    return law
