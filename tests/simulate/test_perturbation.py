"""What makes the simulated truth differ from the form that an estimator may assume."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from simulate.made import scenario_of

from specctl.contract.table import TableState
from specctl.errors import TargetError
from specctl.policy.loader import parse_policy
from specctl.simulate import state as at
from specctl.simulate.closed_loop import ClosedLoad
from specctl.simulate.costs import setting_seconds, wave_factor
from specctl.simulate.daemon import Autotune
from specctl.simulate.engine import SimulatedEngine, table_of
from specctl.simulate.engine_profile import EngineProfile
from specctl.simulate.perturbation import PERTURBATIONS, Perturbation, joined
from specctl.simulate.settings import chains, prepared_of
from specctl.simulate.target import LOG_STEPS, SimulatedTarget

PREPARED = prepared_of(chains(8))


def test_a_staircase_pads_to_the_next_graph(h200: EngineProfile) -> None:
    costs = at.new_costs(h200, 9, Perturbation(graph_tokens=(16, 64)), 0)
    same = [setting_seconds(costs, PREPARED, 3, batch, batch, 0, 0, 0.0) for batch in (5, 16)]
    # 20 and 64 verified tokens run as 64; the draft's own cost is by request.
    assert same[1] - same[0] == pytest.approx(11 * h200.draft.request_s, rel=1e-6)
    plain = at.new_costs(h200, 9, Perturbation(), 0)
    assert setting_seconds(costs, PREPARED, 0, 17, 17, 0, 0, 0.0) > setting_seconds(
        plain, PREPARED, 0, 17, 17, 0, 0, 0.0
    )
    with_prompts = [setting_seconds(one, PREPARED, 3, 5, 5, 0, 100, 0.0) for one in (costs, plain)]
    assert with_prompts[0] == with_prompts[1]


def test_a_cells_deviation_is_fixed_and_as_large_as_it_says() -> None:
    deviation = Perturbation(cell_deviation_ratio=0.05)
    factors = deviation.cell_factors(256, 9, 3)
    assert (factors == deviation.cell_factors(256, 9, 3)).all()
    assert (factors[5] == factors[6]).all(), "5 and 6 are one bucket"
    assert (factors[6] != factors[7]).all()
    cells = np.unique(factors)
    # 17 buckets x 9 settings: the standard deviation's standard error is 0.003.
    assert cells.std() == pytest.approx(0.05, abs=0.01)
    assert (Perturbation().cell_factors(256, 9, 3) == 1.0).all()


def test_the_wave_wanders_slowly() -> None:
    wave = Perturbation(wave_ratio=0.1).wave(0)
    assert wave.mean() == pytest.approx(1.0, abs=0.03)
    assert wave.std() == pytest.approx(0.1, abs=0.02)
    apart = [np.corrcoef(wave[:-lag], wave[lag:])[0, 1] for lag in (1, 20, 120)]
    assert apart[0] > 0.9
    assert 0.2 < apart[1] < 0.55
    assert abs(apart[2]) < 0.2
    assert wave_factor(wave, 3.25) == pytest.approx(0.75 * wave[3] + 0.25 * wave[4])


def test_acceptance_falls_with_the_batch(h200: EngineProfile) -> None:
    shares = []
    for batch in (1, 16):
        engine = SimulatedEngine(
            ClosedLoad.constant(batch, 30.0),
            h200,
            scenario_of(0.8),
            seed=0,
            perturbation=Perturbation(acceptance_fall_ratio=0.04),
        )
        engine.set_table(table_of(np.full(2, 1)))
        engine.run(1e9)
        counts = engine.server.counts
        shares.append(counts[at.ACCEPTED] / counts[at.DRAFTED])
    # 3,000 and 80,000 drafts: standard errors of 0.007 and 0.002; the last of 16 run on alone.
    assert shares[0] == pytest.approx(0.8, abs=0.025)
    assert shares[1] == pytest.approx(0.8 * (1 - 0.16), abs=0.01)


def test_drafts_are_found_for_stretches_of_an_answer(h200: EngineProfile) -> None:
    """For all tokens of a stretch or for none; what is not found is not verified."""
    perturbation = Perturbation(found_ratio=0.4, stretch_tokens=16)
    _, target = started(h200, perturbation)
    target.run(20.0)
    [cell] = [one for one in target.counters.cells() if one.num_speculative_tokens and not one.has_prefill]
    share = cell.drafted_at[0] / cell.request_steps
    # A request is longer in a stretch without drafts: 16 steps against some 8.
    assert share == pytest.approx(0.4 * 8 / (0.4 * 8 + 0.6 * 16), abs=0.03)
    assert cell.drafted_at == (cell.drafted_at[0],) * cell.num_speculative_tokens
    assert cell.verified_tokens == cell.request_steps + cell.drafted_tokens
    assert cell.accepted_at[0] / cell.drafted_at[0] == pytest.approx(0.5, abs=0.02)
    positions, seconds = cell.verified_tokens / cell.steps, cell.step_s / cell.steps
    product = cell.step_s_by_verified_tokens / cell.steps - positions * seconds
    assert product > 0.0, "steps with more drafts take longer"


def started(profile: EngineProfile, perturbation: Perturbation) -> tuple[SimulatedEngine, SimulatedTarget]:
    engine = SimulatedEngine(
        ClosedLoad.constant(8, 100.0),
        profile,
        scenario_of(0.5),
        seed=0,
        log_steps=LOG_STEPS,
        perturbation=perturbation,
    )
    return engine, SimulatedTarget(engine)


def test_late_telemetry_is_that_of_before(h200: EngineProfile) -> None:
    seen: dict[float, list[int]] = {}
    for late_s in (0.0, 2.0):
        _, target = started(h200, Perturbation(telemetry_late_s=late_s))
        target.observe()
        seen[late_s] = []
        for second in range(1, 9):
            target.run(float(second))
            observation = target.observe()
            assert observation.interval_s == pytest.approx(1.0, abs=0.1)
            seen[late_s].append(sum(cell.steps for cell in observation.cells or ()))
    assert seen[2.0][:2] == [0, 0]
    assert seen[2.0][2:] == pytest.approx(seen[0.0][:6], abs=1)


def test_telemetry_that_is_gone_raises_while_the_lease_runs_on(h200: EngineProfile) -> None:
    _, target = started(h200, PERTURBATIONS["gone"])
    gone = []
    for second in range(1, 50):
        target.run(float(second))
        try:
            target.observe()
        except TargetError:
            gone.append(second)
    assert gone == list(range(35, 45))
    policy = parse_policy("kind: fixed\nnum_speculative_tokens: 4\nlease_s: 5", "test")
    engine, _ = started(h200, PERTURBATIONS["gone"])
    arm = Autotune("ours", policy)
    arm.start(engine)
    arm.run(34.5)
    assert arm.target.live.state is TableState.LIVE
    arm.run(42.0)
    assert arm.target.live.state is TableState.FALLBACK


def test_all_of_them_are_all_of_them() -> None:
    parts = [PERTURBATIONS[name] for name in ("staircase", "noise", "batch", "late", "gone")]
    assert joined(parts) == PERTURBATIONS["all"]
    assert PERTURBATIONS["all"].telemetry_late_s == 2.0
    assert joined([]) == PERTURBATIONS["none"] == Perturbation()


def test_under_no_perturbation_seconds_are_the_profiles(small: Callable[..., EngineProfile]) -> None:
    profile = small()
    costs = at.new_costs(profile, 9, Perturbation(), 0)
    assert (costs.cell_factor == 1.0).all()
    assert (costs.wave == 1.0).all()


def test_steps_stall_as_often_as_it_says_and_the_first_of_a_setting_compiles(h200: EngineProfile) -> None:
    seconds = []
    for perturbation in (Perturbation(), Perturbation(stall_s=1.0, stall_every_s=2.0)):
        engine = SimulatedEngine(
            ClosedLoad.constant(8, 400.0), h200, scenario_of(0.5), seed=0, perturbation=perturbation
        )
        engine.set_table(table_of(np.full(2, 1)))
        engine.run(1e9, 10_000)
        seconds.append(engine.now_s)
    # Some 30 stalls: a standard error of 5 of them.
    assert seconds[1] - seconds[0] == pytest.approx(seconds[0] / 2.0, rel=0.6)

    engine, _ = started(h200, Perturbation(first_step_s=3.0))
    # The first of all holds prompts alone.
    for setting in (2, 2, 2, 4):
        engine.set_table(table_of(np.full(2, setting)))
        engine.run(1e9, 1)
    firsts = [float(one[0]) for one in engine.log.floats[:3]]
    assert [round(one) for one in firsts] == [3, 0, 3]
