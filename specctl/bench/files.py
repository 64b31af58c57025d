"""Result files of other tools, compared as the arms of a benchmark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from specctl.bench.arms import Arm, ArmKind, baseline_of
from specctl.bench.figures import Samples, arm_figures
from specctl.bench.interchange import read_runs
from specctl.bench.judged import comparisons, verdict
from specctl.bench.loads import Load
from specctl.bench.machine import about_machine
from specctl.bench.plan import Measured, Plan
from specctl.bench.results import ArmFigures, BenchResult, Run
from specctl.bench.run_load import Span
from specctl.bench.saved import save
from specctl.bench.terminal import print_result
from specctl.clock import iso_utc
from specctl.errors import BenchArgumentError

__all__ = ["run_files"]

LOAD = Load(prompts="file", concurrency=1, name="file")
_LATENCIES = ("ttft", "tpot", "itl", "e2el")


def run_files(options: Mapping[str, Any]) -> BenchResult:
    """Raises BenchArgumentError."""
    console = Console(stderr=bool(options["as_json"]))
    runs, warnings = _runs(options["from_files"])
    arms = tuple(Arm(name=name, kind=ArmKind.AS_IS) for name in dict.fromkeys(run.arm for run in runs))
    baseline = baseline_of(options["baseline"], arms)
    rounds = len(runs) // len(arms)
    plan = Plan(arms, baseline, (LOAD,), rounds, Span(), "completions")
    result = BenchResult(
        command=options["command"],
        utc=iso_utc(datetime.now(UTC)),
        machine=about_machine(),
        servers=(),
        warnings=tuple(warnings),
        arms=arms,
        baseline=baseline,
        loads=(LOAD,),
        rounds=rounds,
        runs=tuple(runs),
        figures=tuple(_figures(arm.name, runs, options["price_per_hour"]) for arm in arms),
        comparisons=comparisons(plan, runs),
        verdict=verdict(arms, baseline, runs),
        price_per_hour=options["price_per_hour"],
    )
    print_result(result, console, as_json=options["as_json"])
    if options["save"] is not None:
        options["save"].mkdir(parents=True, exist_ok=True)
        save(options["save"], result, plan, (), Measured())
    return result


def _runs(texts: Sequence[str]) -> tuple[list[Run], list[str]]:
    """(runs, warnings): as many of each arm, its files in their order."""
    runs: list[Run] = []
    for text in texts:
        name, is_given, path = text.partition("=")
        if not is_given or not name:
            raise BenchArgumentError(f"--from {text!r}: expected ARM=FILE")
        runs += read_runs(Path(path), name, first_round=sum(run.arm == name for run in runs))
    counts = Counter(run.arm for run in runs)
    if len(counts) < 2:
        raise BenchArgumentError(f"--from: one arm ({', '.join(counts)}) is no comparison")
    rounds = min(counts.values())
    more = [
        f"{name}: {count - rounds} files without a partner"
        for name, count in counts.items()
        if count > rounds
    ]
    return [run for run in runs if run.round < rounds], more


def _figures(arm: str, runs: Sequence[Run], price_per_hour: float | None) -> ArmFigures:
    """Latencies are the last file's: percentiles of several files cannot be joined."""
    own = [run for run in runs if run.arm == arm]
    found = arm_figures(arm, LOAD.title, own, Samples(), price_per_hour)
    return found.model_copy(update={name: getattr(own[-1], name) for name in _LATENCIES})
