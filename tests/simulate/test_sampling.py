"""Sampled steps of the simulated engine: which steps they are, how they are counted, what they cost."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from simulate.made import scenario_of, trace_of

from specctl.contract.setting import RowSample, Setting
from specctl.contract.table import TablePut, TableRow
from specctl.engine.step_sampling import StepSampler
from specctl.simulate import state as at
from specctl.simulate.closed_loop import ClosedLoad
from specctl.simulate.compare import simulate
from specctl.simulate.engine import SimulatedEngine, table_of
from specctl.simulate.engine_profile import EngineProfile
from specctl.simulate.step_seconds import step_seconds
from specctl.simulate.target import LOG_STEPS, SimulatedTarget


def row(first: int, last: int | None, depth: int, sample: int | None = None, every: int = 2) -> TableRow:
    setting = None if sample is None else Setting(num_speculative_tokens=sample)
    return TableRow(
        decode_batch_from=first,
        decode_batch_to=last,
        num_speculative_tokens=depth,
        sample=None if setting is None else RowSample(setting=setting, every_steps=every),
    )


def put(target: SimulatedTarget, *rows: TableRow) -> None:
    target.put(TablePut(base_version=target.live.version, rows=rows, owner="test"))


def test_the_steps_are_those_that_the_plugins_sampler_takes(h200: EngineProfile) -> None:
    """One counter of steps since the last sample, whichever row: the batch wanders over three rows."""
    rows = (row(1, 4, 3, 0, 7), row(5, 8, 2), row(9, None, 1, 4, 5))
    times = np.arange(20) * 0.5
    load = ClosedLoad(np.where(times % 2 < 1, 3, np.where(times % 4 < 3, 7, 14)).astype(np.int64), 10.0)
    engine = SimulatedEngine(load, h200, scenario_of(0.5), seed=0, log_steps=LOG_STEPS)
    target = SimulatedTarget(engine)
    put(target, *rows)
    target._take_table()
    sampler = StepSampler()
    sampled = [0, 0]
    while not engine.is_done:
        engine.run(engine.now_s + 10.0, 1)
        counts = engine.server.counts
        if counts[at.LOGGED]:
            place, batch, *_, is_sampled = engine.log.integers[0].tolist()
            # What is looked up is the batch before the step's own admissions: it decodes all of it.
            expected, is_sample = sampler.next_setting(target.live.lookup_row(batch))
            assert (place, bool(is_sampled)) == (expected.num_speculative_tokens, is_sample)
            sampled[int(is_sampled)] += 1
        engine.clear_log()
    assert sampled[1] > 50
    assert sampled[1] == int(engine.server.counts[at.SAMPLED_STEPS])


def test_a_table_that_is_replaced_does_not_start_the_count_over(h200: EngineProfile) -> None:
    engine = SimulatedEngine(trace_of([0.0], 10, 400), h200, scenario_of(0.0), seed=0, log_steps=LOG_STEPS)
    target = SimulatedTarget(engine)
    while not engine.is_done:
        put(target, row(1, None, 0, 1, 10))
        target._take_table()
        engine.run(1e9, 3)
    sampled = engine.log.integers[: engine.server.counts[at.LOGGED], at.LOG_SAMPLED]
    assert np.flatnonzero(sampled).tolist() == list(range(9, 399, 10))


def test_samples_are_counted_in_the_cell_of_their_own_setting(h200: EngineProfile) -> None:
    engine = SimulatedEngine(
        ClosedLoad.constant(8, 10.0), h200, scenario_of(0.7), seed=0, log_steps=LOG_STEPS
    )
    target = SimulatedTarget(engine)
    put(target, row(1, None, 0, 3, 100))
    target.run(10.0)
    cells = target.counters.cells()
    drafting = [cell for cell in cells if cell.num_speculative_tokens == 3]
    assert sum(cell.sampled_steps for cell in cells) == sum(cell.steps for cell in drafting) > 10
    assert all(cell.sampled_steps == cell.steps for cell in drafting)
    assert all(cell.sampled_steps == 0 for cell in cells if cell.num_speculative_tokens == 0)
    assert sum(cell.accepted_at[0] for cell in drafting) > 0


def test_samples_are_no_changes_of_the_table(h200: EngineProfile) -> None:
    engine = SimulatedEngine(ClosedLoad.constant(8, 5.0), h200, scenario_of(0.7), seed=0, log_steps=LOG_STEPS)
    target = SimulatedTarget(engine)
    for second, sample in enumerate((None, 1, 2, 5), start=1):
        put(target, row(1, None, 4, sample, 20))
        target.run(float(second))
    # From the start's 8 before the first step, which nothing felt, to 4.
    assert engine.switches == 0
    put(target, row(1, None, 3))
    target.run(5.0)
    assert engine.switches == 1


@pytest.mark.parametrize(("base", "sample"), [(0, 3), (5, 0), (2, 2)])
def test_what_samples_cost_is_what_the_rows_own_setting_would_have_emitted(
    base: int, sample: int, small: Callable[..., EngineProfile]
) -> None:
    """A lone request that never ends, without a context cost: every step is like the others."""
    profile = small().model_copy(update={"context_token_s": 0.0})
    chance, every = 0.6, 10
    engine = SimulatedEngine(trace_of([0.0], 10, 3000), profile, scenario_of(chance), seed=0)
    engine.set_table(table_of(np.full(2, base), np.full(2, sample), np.full(2, every)))
    engine.run(1.0)
    costs = profile.step_costs()

    def seconds(depth: int) -> float:
        return step_seconds(costs, 1, depth, depth + 1, depth + 1, 0, 0, 0)

    def tokens(depth: int) -> float:
        return sum(chance**j for j in range(depth + 1))

    each = tokens(base) / seconds(base) * seconds(sample) - tokens(sample)
    samples = int(engine.server.counts[at.SAMPLED_STEPS])
    assert samples > 5
    assert engine.server.sums[at.SAMPLE_TOKENS] == pytest.approx(samples * each, rel=1e-9, abs=1e-9)


def test_a_run_tells_the_samples_cost_as_a_share_of_the_tokens(h200: EngineProfile) -> None:
    class Sampling:
        name, log_steps, poll_interval_s = "sampling", 0, 1.0

        def start(self, engine: SimulatedEngine) -> None:
            self._engine = engine
            engine.set_table(table_of(np.full(2, 6), np.full(2, 0), np.full(2, 150)))

        def run(self, until_s: float) -> None:
            self._engine.run(until_s)

    done = simulate(ClosedLoad.constant(16, 20.0), h200, scenario_of(0.9), Sampling(), seed=0)
    assert done.sampled_steps == pytest.approx(done.steps / 150, abs=2)
    assert 0.002 < done.sampled_cost_ratio < 1 / 150
    assert done.switches == 0
