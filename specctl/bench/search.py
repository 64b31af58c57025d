"""``--search``: the prepared settings against each other within a budget, and what follows from the best one.

Successive halving: every stage runs all settings that are left and off, in rounds, and keeps the better half.
The best two and off are then compared in the usual way. Last, the best one and off run the other presets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from specctl.bench.advice import chosen_by_batch, launch_line, policy_text
from specctl.bench.arms import Arm, ArmKind, setting_name
from specctl.bench.experiment import Experiment, Progress
from specctl.bench.intervals import ROUNDS_MIN, Outcome
from specctl.bench.judged import compared
from specctl.bench.plan import Measured, Plan
from specctl.bench.prompts import PRESETS
from specctl.bench.results import Comparison, Run
from specctl.bench.run_load import Span
from specctl.bench.servers import Server
from specctl.contract.setting import Setting
from specctl.contract.table import legal_settings
from specctl.errors import BenchInputError

__all__ = ["Found", "candidates", "search", "spread"]

STAGES_SHARE, FINAL_SHARE, OTHERS_SHARE = 0.5, 0.3, 0.2
"""Of the budget."""
STAGE_ROUNDS = 2
RUN_MIN_S, RUN_MAX_S = 2.0, 20.0
FINALISTS = 2
OVERHEAD_S = 0.5
"""Of a run, beside its load: a table put, counters read."""


@dataclass(frozen=True)
class Found:
    """``plan`` and ``measured``: of the final comparison. ``report``: for the result file."""

    plan: Plan
    measured: Measured
    report: dict[str, Any]


def candidates(settings: Sequence[Setting]) -> tuple[Setting, ...]:
    """Every prepared setting that drafts, by depth, top-k and width."""
    drafting = [one for one in settings if one.num_speculative_tokens > 0]
    return tuple(
        sorted(drafting, key=lambda one: (one.tree_topk, one.num_speculative_tokens, one.width_tokens))
    )


def spread(settings: Sequence[Setting], most: int) -> tuple[Setting, ...]:
    """At most ``most`` of them, evenly over the list, first and last included."""
    if len(settings) <= most:
        return tuple(settings)
    if most == 1:
        return (settings[-1],)
    places = {round(i * (len(settings) - 1) / (most - 1)) for i in range(most)}
    return tuple(settings[i] for i in sorted(places))


async def search(
    plan: Plan, servers: Sequence[Server], progress: Progress, folder: Path, *, minutes: float
) -> Found:
    """Raises BenchInputError where nothing can be steered or the budget is too small for one stage."""
    at = next(
        (i for i, one in enumerate(servers) if one.capabilities and one.capabilities.controllable), None
    )
    if at is None:
        raise BenchInputError("--search: no target with the specctl plugin can be steered")
    capabilities = servers[at].capabilities
    assert capabilities is not None
    off = Arm(name="off", kind=ArmKind.SETTING, server=at, setting=Setting(num_speculative_tokens=0))
    began_s, budget_s = time.monotonic(), 60.0 * minutes
    plan = replace(plan, outputs=0)
    arms = _first_arms(candidates(legal_settings(capabilities)), at, plan, budget_s * STAGES_SHARE)
    stages: list[dict[str, Any]] = []
    while len(arms) > FINALISTS:
        left_s = budget_s * STAGES_SHARE - (time.monotonic() - began_s)
        stage = _stage(plan, (off, *arms), left_s / math.ceil(math.log2(len(arms))))
        measured = await Experiment(stage, servers, progress, folder).run()
        plan = replace(plan, warm_up=False)
        ranked = _ranked(measured.runs, [arm.name for arm in arms])
        stages.append({"seconds": stage.span.seconds, "ratio_to_off": ranked})
        kept = list(ranked)[: max(FINALISTS, len(arms) // 2)]
        arms = tuple(arm for arm in arms if arm.name in kept)
    final_s = budget_s * (STAGES_SHARE + FINAL_SHARE) - (time.monotonic() - began_s)
    final = _final(plan, (off, *arms), final_s)
    measured = await Experiment(final, servers, progress, folder).run()
    ranked = _ranked(measured.runs, [arm.name for arm in arms])
    best = next(arm for arm in arms if arm.name == next(iter(ranked)))
    others = await _others(
        plan, (off, best), servers, progress, folder, budget_s + began_s - time.monotonic()
    )
    return Found(final, measured, _report(final, servers[at], best, measured.runs, stages, others))


def _first_arms(settings: tuple[Setting, ...], server: int, plan: Plan, budget_s: float) -> tuple[Arm, ...]:
    """As many settings as the budget has runs for."""
    if not settings:
        raise BenchInputError("--search: the server has prepared no setting that drafts")
    runs = budget_s / (RUN_MIN_S + OVERHEAD_S) / len(plan.loads) / STAGE_ROUNDS
    # All stages together have about twice as many runs as the first one.
    most = int(runs / 2) - 1
    if most < FINALISTS:
        raise BenchInputError(
            "--search: --minutes is too small for the loads; name fewer loads or more minutes"
        )
    return tuple(
        Arm(name=setting_name(one), kind=ArmKind.SETTING, server=server, setting=one)
        for one in spread(settings, most)
    )


def _stage(plan: Plan, arms: tuple[Arm, ...], budget_s: float) -> Plan:
    seconds = budget_s / (STAGE_ROUNDS * len(arms) * len(plan.loads)) - OVERHEAD_S
    span = Span(min(max(seconds, RUN_MIN_S), RUN_MAX_S))
    return replace(plan, arms=arms, baseline="off", rounds=STAGE_ROUNDS, span=span, prompts_once=False)


def _final(plan: Plan, arms: tuple[Arm, ...], budget_s: float) -> Plan:
    """As many rounds as fit, rather than long ones: rounds narrow the interval."""
    a_round_s = len(arms) * len(plan.loads) * (2 * RUN_MIN_S + OVERHEAD_S)
    rounds = min(max(int(budget_s / a_round_s), ROUNDS_MIN), plan.rounds)
    seconds = budget_s / (rounds * len(arms) * len(plan.loads)) - OVERHEAD_S
    span = Span(min(max(seconds, RUN_MIN_S), RUN_MAX_S))
    return replace(plan, arms=arms, baseline="off", rounds=rounds, span=span, prompts_once=False)


async def _others(
    plan: Plan,
    arms: tuple[Arm, Arm],
    servers: Sequence[Server],
    progress: Progress,
    folder: Path,
    budget_s: float,
) -> tuple[Comparison, ...]:
    """The best setting against off on the presets that were not asked for; fewer where time is short."""
    used = {part for load in plan.loads for part in load.prompts.split("+")}
    names = [name for name in PRESETS if name not in used]
    most = int(budget_s / (ROUNDS_MIN * len(arms) * (RUN_MIN_S + OVERHEAD_S)))
    names = names[: max(min(most, len(names)), 1)]
    seconds = budget_s / (ROUNDS_MIN * len(arms) * len(names)) - OVERHEAD_S
    first = plan.loads[0]
    loads = tuple(first.model_copy(update={"prompts": name, "name": ""}) for name in names)
    span = Span(min(max(seconds, RUN_MIN_S), RUN_MAX_S))
    other = replace(
        plan, arms=arms, baseline="off", loads=loads, rounds=ROUNDS_MIN, span=span, prompts_once=False
    )
    measured = await Experiment(other, servers, progress, folder).run()
    return tuple(compared(measured.runs, arms[1].name, "off", load.title) for load in loads)


def _ranked(runs: Sequence[Run], names: Sequence[str]) -> dict[str, float]:
    """Ratio of speed to off over all loads, the best first."""
    ratios = {name: compared(runs, name, "off", None).ratio for name in names}
    return dict(sorted(ratios.items(), key=lambda one: one[1], reverse=True))


def _report(
    plan: Plan,
    server: Server,
    best: Arm,
    runs: Sequence[Run],
    stages: Sequence[dict[str, Any]],
    others: Sequence[Comparison],
) -> dict[str, Any]:
    overall = compared(runs, best.name, "off", None)
    pays = overall.outcome is Outcome.FASTER
    assert best.setting is not None
    setting = best.setting if pays else Setting(num_speculative_tokens=0)
    rows = chosen_by_batch(plan.arms, plan.loads, runs, setting)
    lines = [f"{one.load}: {one.words}" for one in others]
    lost = [one for one in others if one.outcome is Outcome.SLOWER]
    verdict = (
        f"best: {best.name}, {overall.words} than off" if pays else f"off: {best.name} is {overall.words}"
    )
    if lost and pays:
        worst = min(lost, key=lambda one: one.ratio)
        verdict += f"; other workloads lose by it: {worst.load} is {worst.words}"
    return {
        "verdict": verdict,
        "stages": list(stages),
        "setting": setting.model_dump(),
        "launch": launch_line(server, setting),
        "policy": policy_text(rows),
        "others": [one.model_dump(mode="json") for one in others],
        "others_words": lines,
        "mean_speedup_of_others": math.exp(fmean(math.log(one.ratio) for one in others)) if others else None,
    }
