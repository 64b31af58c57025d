"""One cell of the regret suite: a daemon and its rivals on the same load, and what became of each.

Rivals (off, every static setting, the clairvoyant) change only with the simulator: they are kept in .cache.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from specctl.contract.setting import Setting
from specctl.policy.loader import find_policy, load_policy
from specctl.simulate.arms import statics
from specctl.simulate.closed_loop import ClosedLoad
from specctl.simulate.compare import ArmResult, Comparison, compared, quiet_daemon, simulate
from specctl.simulate.daemon import Autotune, DaemonOf
from specctl.simulate.engine import PLAIN, Load
from specctl.simulate.engine_profile import EngineProfile, load_profile
from specctl.simulate.files import find_file
from specctl.simulate.perturbation import Perturbation
from specctl.simulate.scenario import Scenario
from specctl.simulate.settings import chains
from testing.provenance import ROOT

__all__ = [
    "BEST_STATIC",
    "CLAIRVOYANT",
    "OURS",
    "Case",
    "Cell",
    "Task",
    "TaskOptions",
    "run",
    "summary",
    "table",
]

OURS, CLAIRVOYANT, BEST_STATIC, OFF = "autotune", "clairvoyant", "best static", "off"
CACHE = ROOT / ".cache" / "regret"
# Files that change nothing for the rivals.
_DAEMONS_OWN = {
    "chart.py",
    "command.py",
    "daemon.py",
    "recorded.py",
    "recorded_windows.py",
    "report.py",
    "shapes.py",
    "target.py",
}
RATIOS = ("regret_ratio", "tpot_regret_ratio", "lost_ratio")
COSTS = ("switches_per_minute", "sampled_cost_ratio")
Cell = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A load on an engine, and the group of cells in which it counts."""

    name: str
    group: str
    load: Load
    scenario: Scenario
    profile: EngineProfile
    seed: int
    perturbation: Perturbation = PLAIN
    settings: tuple[Setting, ...] = ()


@dataclass(frozen=True)
class TaskOptions:
    """Of a run of the suite. ``requests``: of each open-loop trace; ``daemon``: module:function of another
    one than that of ``specctl autotune``."""

    seeds: tuple[int, ...]
    requests: int
    policy: str
    profile: str
    daemon: str | None


@dataclass(frozen=True)
class Task:
    """Small, for another process, which makes the case."""

    group: str
    seed: int
    options: TaskOptions

    @property
    def profile(self) -> EngineProfile:
        return load_profile(find_file(self.options.profile, "profiles"))

    def case(self) -> Case:
        raise NotImplementedError


def _of_engine(perturbation: Perturbation) -> Perturbation:
    """Without what only the telemetry's reader meets."""
    plain = Perturbation()
    telemetry = [field.name for field in fields(Perturbation) if field.name.startswith("telemetry")]
    return replace(perturbation, **{name: getattr(plain, name) for name in telemetry})


def run(task: Task) -> Cell:
    case = task.case()
    rivals = _rivals(case)
    policy, daemon = load_policy(find_policy(task.options.policy)), _daemon(task.options.daemon)
    with quiet_daemon():
        ours = _simulated(case, Autotune(OURS, policy, daemon=daemon), case.perturbation)
    cell = {"group": case.group, "load": case.name, "requests": _constant(case.load), "seed": case.seed}
    cell |= _described(compared([*rivals, ours]))
    print(_words(cell), file=sys.stderr, flush=True)
    return cell


def _constant(load: Load) -> int | None:
    """Requests in flight; None: they vary."""
    is_constant = isinstance(load, ClosedLoad) and len(load.in_flight) == 1
    return int(load.in_flight[0]) if is_constant else None


def _simulated(case: Case, arm: Any, perturbation: Perturbation) -> ArmResult:
    return simulate(
        case.load, case.profile, case.scenario, arm,
        seed=case.seed, settings=case.settings, perturbation=perturbation,
    )  # fmt: skip


def _daemon(name: str | None) -> DaemonOf | None:
    if name is None:
        return None
    module, _, function = name.partition(":")
    found: DaemonOf = getattr(importlib.import_module(module), function)
    return found


def _rivals(case: Case) -> list[ArmResult]:
    path = CACHE / f"{_key(case)}.json"
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        return [ArmResult(**{**one, "back_s": tuple(one["back_s"])}) for one in kept]
    settings = case.settings or chains(case.profile.num_speculative_tokens_max)
    results = [_simulated(case, arm, _of_engine(case.perturbation)) for arm in statics(settings)]
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = [{key: value for key, value in vars(one).items() if key != "series"} for one in results]
    path.write_text(json.dumps(kept), encoding="utf-8")
    return results


def _key(case: Case) -> str:
    digest = hashlib.sha256()
    sources = [*sorted((ROOT / "specctl" / "simulate").glob("*.py")), ROOT / "specctl/contract/setting.py"]
    for path in sources:
        if path.name not in _DAEMONS_OWN:
            digest.update(path.read_bytes())
    load = case.load
    arrays = [load.in_flight] if isinstance(load, ClosedLoad) else [
        load.arrival_s, load.prompt_tokens, load.output_tokens
    ]  # fmt: skip
    for array in arrays:
        digest.update(array.tobytes())
    span = (load.span_s, load.pays_s) if isinstance(load, ClosedLoad) else ()
    digest.update(repr((case.seed, _of_engine(case.perturbation), span)).encode())
    for model in (case.scenario, case.profile, *case.settings):
        digest.update(model.model_dump_json().encode())
    return digest.hexdigest()[:24]


def _described(comparison: Comparison) -> Cell:
    """Ours, the best static setting, off and the clairvoyant."""
    names = {OURS: OURS, BEST_STATIC: comparison.best_static, OFF: OFF, CLAIRVOYANT: CLAIRVOYANT}
    arms = {}
    for name, arm in names.items():
        result = comparison.arm(arm)
        record = result.record()
        arms[name] = {key: record[key] for key in ("tokens_per_s", "to_off", "to_best_static")}
        arms[name] |= {key: float(f"{record[key]:.4g}") for key in (*RATIOS, *COSTS)}
        arms[name]["back_s"] = [round(value, 2) for value in result.back_s]
    return {"best_static": comparison.best_static, "arms": arms}


def summary(cells: Sequence[Cell]) -> Cell:
    """By group and arm: mean and worst of the measures; and by how much another arm is ahead of the
    clairvoyant at most."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell["group"], []).append(cell)
    found: Cell = {}
    for group, members in groups.items():
        found[group] = {"cells": len(members)}
        for arm in (OURS, BEST_STATIC, OFF, CLAIRVOYANT):
            found[group][arm] = _measures([cell["arms"][arm] for cell in members])
        back = _back(members)
        if back:
            found[group]["seconds back from off, by requests"] = back
        ahead = [-min(cell["arms"][arm]["regret_ratio"] for arm in (OURS, BEST_STATIC)) for cell in members]
        found[group]["ahead of the clairvoyant"] = {
            "cells": sum(value > 0 for value in ahead),
            "most_ratio": round(max(max(ahead), 0.0), 5),
        }
    return found


def _back(cells: Sequence[Cell]) -> Cell:
    """Of the daemon, where requests are constant. ``on_already``: times that it never was off."""
    by_requests: dict[int, list[float]] = {}
    for cell in cells:
        if cell["requests"] is not None and cell["arms"][OURS]["back_s"]:
            by_requests.setdefault(cell["requests"], []).extend(cell["arms"][OURS]["back_s"])
    return {
        str(requests): {
            "on_already": sum(value == 0 for value in values),
            "from_off": len(from_off := [value for value in values if value > 0]),
            "mean_s": round(statistics.fmean(from_off), 2) if from_off else None,
            "worst_s": max(from_off, default=None),
        }
        for requests, values in sorted(by_requests.items())
    }


def _measures(found: Sequence[Cell]) -> Cell:
    measures: Cell = {}
    for keys, worst, digits in (((*RATIOS, *COSTS), max, 5), (("to_best_static", "to_off"), min, 4)):
        for key in keys:
            values = [one[key] for one in found]
            mean = statistics.fmean(values)
            measures[key] = {"mean": round(mean, digits), "worst": round(worst(values), digits)}
    back = [value for one in found for value in one["back_s"] if value > 0]
    if back:
        measures["back_s"] = {
            "times": len(back), "mean": round(statistics.fmean(back), 2), "worst": max(back)
        }  # fmt: skip
    return measures


def table(found: Cell, arms: Iterable[str] = (OURS, BEST_STATIC)) -> str:
    """Mean / worst; ratios in %."""
    head = ("", "cells", "arm", "regret %", "TPOT %", "lost %", "x best static", "x off", "changes/min",
            "samples %", "back s")  # fmt: skip
    lines = [head]
    for group, of_group in found.items():
        lines += [(group, str(of_group["cells"]), arm, *_columns(of_group[arm])) for arm in arms]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _columns(arm: Cell) -> list[str]:
    def both(key: str, factor: float, digits: int) -> str:
        return f"{factor * arm[key]['mean']:.{digits}f} / {factor * arm[key]['worst']:.{digits}f}"

    back = arm.get("back_s")
    return [
        *(both(key, 100, 2) for key in RATIOS),
        *(both(key, 1, 3) for key in ("to_best_static", "to_off")),
        both("switches_per_minute", 1, 1),
        both("sampled_cost_ratio", 100, 2),
        "" if back is None else f"{back['mean']:.1f} / {back['worst']:.1f} ({back['times']} times)",
    ]


def _words(cell: Cell) -> str:
    ours, best = cell["arms"][OURS], cell["arms"][BEST_STATIC]
    return (
        f"{cell['group']:24} {cell['load']:48} seed {cell['seed']:2}  "
        f"regret {ours['regret_ratio']:+7.2%} lost {ours['lost_ratio']:6.2%} "
        f"x best {ours['to_best_static']:.3f} x off {ours['to_off']:.3f} "
        f"changes {ours['switches_per_minute']:4.1f}/min samples {ours['sampled_cost_ratio']:+.2%} "
        f"back {[round(value, 1) for value in ours['back_s']]}; "
        f"{cell['best_static']} {best['regret_ratio']:+.2%}"
    )
