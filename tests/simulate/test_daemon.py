"""The daemon's own loop on virtual time."""

from __future__ import annotations

from simulate.made import scenario_of, trace_of

from specctl.contract.table import TableState
from specctl.core.messages import Reason
from specctl.policy.loader import parse_policy
from specctl.policy.models import AnyPolicy
from specctl.simulate.arms import SglangAdaptive, StockTable
from specctl.simulate.compare import simulate
from specctl.simulate.daemon import Autotune
from specctl.simulate.engine import SimulatedEngine
from specctl.simulate.engine_profile import EngineProfile
from specctl.simulate.state import SETTING


def policy(text: str) -> AnyPolicy:
    return parse_policy(text, "test")


def test_drafting_that_is_never_accepted_is_turned_off(h200: EngineProfile) -> None:
    arm = Autotune("ours", policy("kind: goodput"))
    done = simulate(trace_of([0.0] * 64, 50, 1500), h200, scenario_of(0.02), arm, seed=0)
    assert done.mean_num_speculative_tokens < 2.0
    assert Reason.OFF_NO_GAIN in {plan.reason for plan in arm.plans}
    assert done.series.num_speculative_tokens[-3] < 0.05, "samples alone"


def test_drafting_that_is_always_accepted_stays_long(h200: EngineProfile) -> None:
    arm = Autotune("ours", policy("kind: goodput"))
    done = simulate(trace_of([0.0] * 4, 50, 30_000), h200, scenario_of(1.0), arm, seed=0)
    assert done.mean_num_speculative_tokens > 7.0


def test_observations_count_what_the_engine_did(h200: EngineProfile) -> None:
    arm = Autotune("ours", policy("kind: fixed\nnum_speculative_tokens: 3"))
    trace = trace_of([0.0] * 10, 50, 200)
    engine = SimulatedEngine(trace, h200, scenario_of(0.6), seed=0, log_steps=arm.log_steps)
    arm.start(engine)
    while not engine.is_done:
        arm.run(engine.now_s + 1.0)
    cells = arm.target.counters.cells()
    # The first token of each request comes with its prefill.
    assert sum(cell.emitted_tokens for cell in cells) == 10 * 199
    assert {cell.num_speculative_tokens for cell in cells} == {3}
    assert sum(cell.step_s for cell in cells) <= engine.now_s


def test_the_fallback_holds_once_the_lease_has_run_out(h200: EngineProfile) -> None:
    text = "kind: fixed\nnum_speculative_tokens: 4\nlease_s: 3\nfallback_num_speculative_tokens: 1"
    arm = Autotune("ours", policy(text))
    trace = trace_of([0.0] * 4, 50, 5000)
    engine = SimulatedEngine(trace, h200, scenario_of(0.5), seed=0, log_steps=arm.log_steps)
    arm.start(engine)
    arm.run(1.0)
    assert engine.table[4, SETTING] == 4
    arm.target.run(6.0)
    assert arm.target.live.state is TableState.FALLBACK
    assert engine.table[4, SETTING] == 1, "nobody renewed for five seconds"


def test_the_stock_table_goes_by_the_batch(h200: EngineProfile) -> None:
    ranges = ((1, 2, 6), (3, 256, 0))
    few = simulate(trace_of([0.0] * 2, 50, 200), h200, scenario_of(0.5), StockTable(ranges), seed=0)
    many = simulate(trace_of([0.0] * 20, 50, 200), h200, scenario_of(0.5), StockTable(ranges), seed=0)
    assert few.mean_num_speculative_tokens > 5.9
    assert many.mean_num_speculative_tokens < 0.5


def test_sglangs_rule_climbs_and_falls_with_the_acceptance(h200: EngineProfile) -> None:
    trace = trace_of([0.0] * 2, 50, 2000)
    high = simulate(trace, h200, scenario_of(0.98), SglangAdaptive(), seed=0)
    low = simulate(trace, h200, scenario_of(0.02), SglangAdaptive(), seed=0)
    full = simulate(trace_of([0.0] * 100, 50, 200), h200, scenario_of(0.98), SglangAdaptive(), seed=0)
    assert high.mean_num_speculative_tokens > 6.0
    assert low.mean_num_speculative_tokens < 1.5
    assert full.mean_num_speculative_tokens < 1.0, "from 64 requests on it drafts nothing"
