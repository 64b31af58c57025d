"""A profile of a simulated server, against the costs that the server has."""

from __future__ import annotations

import numpy as np
import pytest
from simulate.made import scenario_of

from specctl.contract.table import TablePut, uniform_rows
from specctl.contract.telemetry import TelemetryCell
from specctl.engine_api.deltas import cell_deltas
from specctl.simulate.closed_loop import ClosedLoad
from specctl.simulate.engine import SimulatedEngine
from specctl.simulate.engine_profile import EngineProfile
from specctl.simulate.profiling.cost_fit import FittedCosts, fit_costs
from specctl.simulate.profiling.measure import combinations
from specctl.simulate.step_seconds import StepCosts, step_seconds
from specctl.simulate.target import LOG_STEPS, SimulatedTarget

HEAD_PASS_S = 4e-4


def counted(profile: EngineProfile, level: int, drafts: int, *, is_long: bool) -> list[TelemetryCell]:
    """Half a second of so many requests, in five polls."""
    prompts = 400.0 if is_long else 60.0
    load = ClosedLoad(np.array([level]), 0.5, (), prompts, 64.0, 0.2)
    engine = SimulatedEngine(load, profile, scenario_of(0.6), seed=level, log_steps=LOG_STEPS)
    target = SimulatedTarget(engine)
    target.put(TablePut(base_version=target.live.version, rows=uniform_rows(drafts), owner="test"))
    found: list[TelemetryCell] = []
    before = target._telemetry()
    for until_s in (0.1, 0.2, 0.3, 0.4, 0.5):
        target.run(until_s)
        after = target._telemetry()
        found += cell_deltas(before, after)
        before = after
    return found


def fitted_costs(costs: FittedCosts) -> StepCosts:
    tokens, seconds = zip(*costs.forward, strict=True)
    terms = {name.replace(".", "_"): value for name, value in costs.terms.items()}
    return StepCosts(tokens=tuple(map(float, tokens)), seconds=seconds, **terms)


@pytest.mark.parametrize(
    "passes",
    [
        {},
        {"pass_s": HEAD_PASS_S},
        {"pass_s": HEAD_PASS_S, "pass_request_s": 5e-6, "pass_context_token_s": 2e-8},
    ],
    ids=["copying", "draft head", "draft head that reads its context"],
)
def test_seconds_between_the_measured_batches_are_predicted(
    passes: dict[str, float], h200: EngineProfile
) -> None:
    profile = h200.model_copy(update={"draft": h200.draft.model_copy(update=passes)})
    places = combinations([2**n for n in range(9)], [0, 2, 4, 8])
    rows = [row for level, drafts, long in places for row in counted(profile, level, drafts, is_long=long)]
    costs, truth = fitted_costs(fit_costs(rows)), profile.step_costs()
    misses = []
    for batch in (3, 6, 12, 24, 48, 96, 192):
        for drafts in (0, 1, 3, 5, 7):
            step = (batch, drafts, 1 + drafts, batch * (1 + drafts), 300 * batch, 0, 0)
            misses.append(step_seconds(costs, *step) / step_seconds(truth, *step) - 1.0)
    assert np.sqrt(np.mean(np.square(misses))) < 0.04
    assert np.abs(misses).max() < 0.12
