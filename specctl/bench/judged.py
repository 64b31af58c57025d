"""What was measured -> figures, comparisons and one verdict line. No input or output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from specctl.bench.arms import Arm, ArmKind
from specctl.bench.figures import arm_figures
from specctl.bench.intervals import WIDE_RATIO, Outcome, paired_ratio
from specctl.bench.plan import Measured, Plan
from specctl.bench.results import ArmFigures, Comparison, Run

__all__ = [
    "best_constant",
    "compared",
    "comparisons",
    "figures_of",
    "is_wide",
    "loses_most",
    "losses",
    "verdict",
]

LOSS_MIN_RATIO = 0.03


def figures_of(plan: Plan, measured: Measured, price_per_hour: float | None) -> tuple[ArmFigures, ...]:
    found = []
    for load in plan.loads:
        for arm in plan.arms:
            runs = [run for run in measured.runs if (run.arm, run.load) == (arm.name, load.title)]
            samples = measured.samples[arm.name, load.title]
            found.append(arm_figures(arm.name, load.title, runs, samples, price_per_hour))
    return tuple(found)


def comparisons(plan: Plan, runs: Sequence[Run]) -> tuple[Comparison, ...]:
    """Every arm against the baseline: under each load, and over all of them."""
    loads: list[str | None] = [load.title for load in plan.loads]
    return tuple(
        compared(runs, arm.name, plan.baseline, load)
        for arm in plan.arms
        if arm.name != plan.baseline
        for load in [None, *loads]
    )


def is_wide(plan: Plan, runs: Sequence[Run]) -> bool:
    """Whether a comparison under one load is not known within WIDE_RATIO."""
    return any(
        one.load is not None and one.low is not None and one.high is not None
        and one.high - one.low > 2.0 * WIDE_RATIO * one.ratio
        for one in comparisons(plan, runs)
    )  # fmt: skip


def compared(runs: Sequence[Run], arm: str, baseline: str, load: str | None) -> Comparison:
    """``load`` None: the geometric mean of all loads, round by round."""
    found = paired_ratio(_speeds(runs, arm, load), _speeds(runs, baseline, load))
    return Comparison(
        arm=arm,
        baseline=baseline,
        load=load,
        ratio=found.ratio,
        low=found.low,
        high=found.high,
        rounds=found.rounds,
        outcome=found.outcome,
    )


def _speeds(runs: Sequence[Run], arm: str, load: str | None) -> list[float]:
    numbers = sorted({run.round for run in runs})
    return [
        math.exp(
            fmean(
                math.log(max(run.speed, 1e-12))
                for run in runs
                if run.round == number and run.arm == arm and load in (None, run.load)
            )
        )
        for number in numbers
    ]


def best_constant(arms: Sequence[Arm], runs: Sequence[Run]) -> str | None:
    """The arm without a daemon that is fastest over all loads. None without one."""
    constants = [arm.name for arm in arms if arm.is_constant]
    return max(constants, key=lambda arm: fmean(map(math.log, _speeds(runs, arm, None))), default=None)


def loses_most(arm: str, arms: Sequence[str], runs: Sequence[Run]) -> tuple[str, float]:
    """(load, ratio to the fastest arm there) where an arm is furthest behind."""
    loads = dict.fromkeys(run.load for run in runs)
    behind = {}
    for load in loads:
        means = {name: math.exp(fmean(map(math.log, _speeds(runs, name, load)))) for name in arms}
        behind[load] = means[arm] / max(means.values())
    worst = min(behind, key=lambda load: behind[load])
    return worst, behind[worst]


def verdict(arms: Sequence[Arm], baseline: str, runs: Sequence[Run]) -> str:
    """One line: autotune against the baseline and the best constant, else the fastest arm against the
    baseline."""
    ours = next((arm.name for arm in arms if arm.kind is ArmKind.AUTOTUNE), None)
    best = best_constant(arms, runs)
    if ours is None or best is None:
        return _fastest(arms, baseline, runs)
    parts = []
    if best != baseline:
        parts.append(f"{compared(runs, ours, best, None).words} than the best constant ({best})")
    parts.append(f"{compared(runs, ours, baseline, None).words} than {baseline}")
    return f"{ours}: " + ", ".join(_grammar(part) for part in parts)


def losses(arms: Sequence[Arm], runs: Sequence[Run]) -> tuple[str, ...]:
    """Of each constant arm that is behind the fastest arm in some load, the worst one."""
    if len({run.load for run in runs}) < 2:
        return ()
    names, found = [arm.name for arm in arms], []
    for arm in arms:
        load, ratio = loses_most(arm.name, names, runs)
        if arm.is_constant and 1.0 - ratio > LOSS_MIN_RATIO:
            found.append(f'{arm.name} loses {1.0 - ratio:.0%} in "{load}"')
    return tuple(found)


def _fastest(arms: Sequence[Arm], baseline: str, runs: Sequence[Run]) -> str:
    others = [arm.name for arm in arms if arm.name != baseline]
    found = [compared(runs, name, baseline, None) for name in others]
    found.sort(key=lambda one: one.ratio, reverse=True)
    shown = found if len(found) <= 3 else found[:1]
    clear = [one for one in found if one.outcome is Outcome.FASTER]
    if not clear and len(found) > 3:
        return f"no arm is faster than {baseline}; the nearest is {found[0].arm}: {found[0].words}"
    return "; ".join(_grammar(f"{one.arm}: {one.words} than {baseline}") for one in shown)


def _grammar(text: str) -> str:
    """``no difference (...) than X`` -> ``no difference (...) to X``."""
    for outcome in (Outcome.NO_DIFFERENCE, Outcome.TOO_FEW):
        if outcome in text:
            head, _, tail = text.rpartition(") than ")
            return f"{head}) to {tail}" if outcome is Outcome.NO_DIFFERENCE else f"{head}) against {tail}"
    return text
