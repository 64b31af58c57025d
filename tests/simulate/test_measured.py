"""The simulator with the shipped profile against tokens/s measured on the machine that it was fitted to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from simulate.made import scenario_of, trace_of

from specctl.simulate.arms import Static
from specctl.simulate.compare import simulate
from specctl.simulate.engine_profile import EngineProfile

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
# What is asked of a simulator that plans capacity.
TOLERANCE = 0.07


@pytest.mark.parametrize("batch", [128, 256])
def test_off_is_as_fast_as_the_measured_engine(batch: int, h200: EngineProfile) -> None:
    runs = json.loads((RESULTS / "gpu-off-cost.json").read_text())["runs"]
    measured = runs[0]["tokens per second"]["never enabled"][str(batch)]["median"]
    done = simulate(trace_of([0.0] * batch, 256, 192), h200, scenario_of(0.5), Static(0), seed=0)
    assert done.tokens_per_s == pytest.approx(measured, rel=TOLERANCE)


@pytest.mark.parametrize("batch", [1, 4, 16, 64])
def test_off_is_as_fast_in_the_other_benchmark_too(batch: int, h200: EngineProfile) -> None:
    figures = json.loads((RESULTS / "gpu-suffix-copying.json").read_text())["figures"]
    measured = figures["arms"]["off"][str(batch)]["summary"]["median"]
    done = simulate(trace_of([0.0] * batch, 377, 256), h200, scenario_of(0.5), Static(0), seed=0)
    assert done.tokens_per_s == pytest.approx(measured, rel=TOLERANCE)
