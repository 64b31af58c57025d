"""The report of vLLM #49548: about 8 requests around a threshold of the batch table, tokens/s collapse."""

from __future__ import annotations

import numpy as np
import pytest
from simulate.made import scenario_of

from specctl.policy.loader import find_policy, load_policy
from specctl.simulate.arms import Static
from specctl.simulate.compare import simulate
from specctl.simulate.daemon import Autotune
from specctl.simulate.engine import SimulatedEngine
from specctl.simulate.engine_profile import EngineProfile
from specctl.simulate.trace import Trace

LEARNING_S, END_S = 60.0, 240.0


def around_eight(acceptance_tokens: float) -> Trace:
    """8 requests at a time, give or take: each of 800 tokens, the arrivals unsteady."""
    rng = np.random.default_rng(3)
    seconds_each = 800 / acceptance_tokens * 0.0052 / 8
    arrival_s = np.cumsum(rng.exponential(seconds_each, int(END_S / seconds_each)))
    size = len(arrival_s)
    return Trace(arrival_s - arrival_s[0], np.full(size, 200), np.full(size, 800), {})


@pytest.mark.parametrize(
    ("chance", "tokens"), [(0.8, 4.3), (0.3, 1.4)], ids=["drafting pays", "drafting hardly pays"]
)
def test_around_a_threshold_nothing_collapses_and_little_switches(
    chance: float, tokens: float, h200: EngineProfile
) -> None:
    trace = around_eight(tokens)
    arm = Autotune("ours", load_policy(find_policy("balanced")))
    engine = SimulatedEngine(trace, h200, scenario_of(chance), seed=0, log_steps=arm.log_steps)
    arm.start(engine)
    switches_before, until_s = 0, 1.0
    while engine.now_s < END_S and not engine.is_done:
        arm.run(until_s)
        engine.note()
        if until_s <= LEARNING_S:
            switches_before = engine.switches
        until_s = np.floor(engine.now_s) + 1.0
    minutes = (engine.now_s - LEARNING_S) / 60.0
    assert (engine.switches - switches_before) / minutes <= 2.0
    speeds = step_speeds(engine, LEARNING_S)
    assert np.quantile(speeds, 0.02) > 0.6 * np.median(speeds)
    off = simulate(trace, h200, scenario_of(chance), Static(0), seed=0)
    assert engine.requests.emitted.sum() / engine.now_s > 0.99 * off.tokens_per_s


def step_speeds(engine: SimulatedEngine, from_s: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Tokens of a request a second, by poll, while anything decodes."""
    series = engine.series
    time_s, batch = np.array(series.time_s), np.array(series.decode_batch)
    speeds = np.diff(np.array(series.emitted_tokens)) / np.diff(time_s) / np.maximum(batch[1:], 1.0)
    return speeds[(time_s[1:] > from_s) & (batch[1:] >= 2.0)]
