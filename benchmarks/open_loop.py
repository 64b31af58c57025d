"""The open-loop part of the regret suite: requests arrive at their own times.

Each trace is scaled so that its arrivals ask for a share of what the server does without speculation. That
is measured by giving it the whole trace at once. Public traces: ``data/traces`` in the folder SPECCTL_SHARED.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.made_traces import made_traces
from benchmarks.regret_cells import Case, Task, TaskOptions
from specctl.simulate.arms import Static
from specctl.simulate.compare import capacity_s
from specctl.simulate.engine import fitting
from specctl.simulate.files import find_file
from specctl.simulate.scenario import load_scenario
from specctl.simulate.trace import Trace, load_trace

__all__ = ["OPEN", "OpenTask", "open_tasks"]

PUBLIC, MADE = OPEN = ("open loop, public traces", "open loop, made traces")
LOADS = (0.6, 1.4)
SCENARIOS = ("steady", "drifting", "phase-changing")
MADE_TIMES, MADE_SEED = 2, 7
"""Made traces are short of prompts: they have twice as many requests."""


@dataclass(frozen=True)
class OpenTask(Task):
    trace: str
    scenario: str
    load: float

    def case(self) -> Case:
        profile, requests = self.profile, self.options.requests
        scenario = load_scenario(find_file(self.scenario, "scenarios"))
        if self.group == MADE:
            whole = made_traces(MADE_TIMES * requests, MADE_SEED + self.seed)[self.trace]
        else:
            whole = load_trace(_folder() / f"{self.trace}.csv").spread().first(requests)
        trace = fitting(whole, profile)
        span_s = capacity_s(trace, profile, scenario, Static(0), seed=self.seed)
        name = f"{self.trace}, {self.scenario}, {self.load:.0%}"
        return Case(name, self.group, at_load(trace, span_s, self.load), scenario, profile, self.seed)


def open_tasks(group: str, options: TaskOptions) -> Sequence[Task]:
    is_made = group == MADE
    names = [*made_traces(2)] if is_made else [path.stem for path in sorted(_folder().glob("*.csv"))]
    return [
        OpenTask(group, seed, options, name, scenario, load)
        for seed in options.seeds
        for name in names
        for scenario in SCENARIOS
        for load in LOADS
    ]


def at_load(trace: Trace, capacity_span_s: float, load: float) -> Trace:
    """Arrivals stretched so that the trace takes ``capacity_span_s`` / ``load``."""
    return trace.scaled(float(trace.arrival_s[-1]) * load / capacity_span_s)


def _folder() -> Path:
    """No public traces where SPECCTL_SHARED is not set."""
    shared = os.environ.get("SPECCTL_SHARED")
    return Path(shared) / "data" / "traces" if shared else Path("no such folder")
