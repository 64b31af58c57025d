"""Scenarios and traces made by hand."""

from __future__ import annotations

import numpy as np

from specctl.simulate.scenario import Scenario
from specctl.simulate.trace import Trace


def scenario_of(*conditional_at: float) -> Scenario:
    """One class that never changes."""
    points = [{"from_s": 0, "conditional_at": conditional_at}]
    return Scenario.model_validate(
        {"name": "made", "classes": [{"name": "all", "share": 1.0, "points": points}]}
    )


def trace_of(arrival_s: list[float], prompt: int, output: int) -> Trace:
    size = len(arrival_s)
    return Trace(np.array(arrival_s), np.full(size, prompt), np.full(size, output), {})
