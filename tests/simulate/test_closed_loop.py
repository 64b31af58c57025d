"""A load that keeps requests in flight."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from simulate.made import scenario_of

from specctl.errors import SimulationInputError
from specctl.simulate import state as at
from specctl.simulate.arms import Clairvoyant, Static, statics
from specctl.simulate.closed_loop import BLOCK, ClosedLoad, by_bin
from specctl.simulate.compare import compare, simulate
from specctl.simulate.engine import SimulatedEngine, table_of
from specctl.simulate.engine_profile import EngineProfile
from specctl.simulate.scenario import Scenario
from specctl.simulate.settings import chains
from specctl.simulate.shapes import HIGH, LOW, break_even, shapes_of
from specctl.simulate.step_seconds import step_seconds


def flipping(chances: tuple[float, ...], every_s: float) -> Scenario:
    points = [{"from_s": every_s * i, "conditional_at": [chance]} for i, chance in enumerate(chances)]
    return Scenario.model_validate(
        {"name": "made", "classes": [{"name": "all", "share": 1.0, "points": points}]}
    )


def test_as_many_are_in_flight_as_the_load_says(h200: EngineProfile) -> None:
    times = by_bin(12.0)
    wanted = np.where(times < 4.0, 3, np.where(times < 8.0, 40, 0))
    load = ClosedLoad(wanted, 12.0, output_median_tokens=50.0)
    engine = SimulatedEngine(load, h200, scenario_of(0.5), seed=0)
    counts = engine.server.counts
    seen = []
    while not engine.is_done:
        before_s = engine.now_s
        engine.run(engine.now_s + 0.001, 1)
        in_flight = int(counts[at.RUNNING] + counts[at.TAIL] - counts[at.HEAD])
        seen.append((before_s, in_flight))
    # A step may end requests; the next step starts others in their place.
    assert {n for from_s, n in seen if from_s < 3.9} <= {0, 1, 2, 3}
    assert max(n for from_s, n in seen if 4.5 < from_s < 7.9) == 40
    assert seen[-1][1] == 0, "none starts any more"
    started = engine.requests.arrival_s[: counts[at.NEXT]]
    assert (np.diff(started) >= 0).all()
    assert started.max() < 8.0


def test_a_run_lasts_its_time_and_lengths_are_those_of_the_load(h200: EngineProfile) -> None:
    engine = SimulatedEngine(ClosedLoad.constant(100, 30.0), h200, scenario_of(0.8), seed=5)
    engine.set_table(table_of(np.full(2, 3)))
    engine.run(1e9)
    assert 30.0 <= engine.now_s < 30.1
    requests = engine.requests
    done = requests.finish_s >= 0
    assert (requests.emitted[done] == requests.output[done]).all()
    assert int(engine.server.sums[at.EMITTED_TOKENS]) == int(requests.emitted.sum())
    # 8,192 draws: the median's standard error is under 2 tokens.
    assert np.median(requests.output) == pytest.approx(200, abs=8)
    assert requests.prompt.min() >= 8
    assert requests.output.max() <= 2000


def test_more_requests_are_drawn_as_they_are_needed_and_the_same_for_every_arm(
    small: Callable[..., EngineProfile],
) -> None:
    load = ClosedLoad(np.array([200]), 20.0, output_median_tokens=8.0, prompt_median_tokens=8.0)
    engines = [SimulatedEngine(load, small(), scenario_of(0.5), seed=1) for _ in range(2)]
    for engine, depth in zip(engines, (0, 2), strict=True):
        engine.set_table(table_of(np.full(2, depth)))
        while not engine.is_done:
            engine.run(engine.now_s + 1.0)
    assert len(engines[0].requests.prompt) > BLOCK
    assert int(engines[0].server.counts[at.NEXT]) > BLOCK
    shared = min(len(engine.requests.prompt) for engine in engines)
    for name in ("prompt", "output"):
        one, other = (getattr(engine.requests, name)[:shared] for engine in engines)
        assert (one == other).all()


def test_a_seed_gives_the_same_run_bit_for_bit(h200: EngineProfile) -> None:
    load = ClosedLoad.constant(20, 10.0)
    runs = [simulate(load, h200, scenario_of(0.6), Static(2), seed=seed) for seed in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0].emitted_tokens != runs[2].emitted_tokens


def test_a_shares_mix_follows_the_time_of_the_start(h200: EngineProfile) -> None:
    classes = [
        {"name": name, "share": 0.5, "points": [{"from_s": 0, "conditional_at": [chance]}]}
        for name, chance in (("code", 0.9), ("chat", 0.1))
    ]
    mix = [{"from_s": 0, "shares": [1.0, 0.0]}, {"from_s": 5, "shares": [0.0, 1.0]}]
    scenario = Scenario.model_validate({"name": "made", "classes": classes, "mix": mix, "repeat_s": 10.0})
    engine = SimulatedEngine(ClosedLoad.constant(10, 20.0), h200, scenario, seed=0)
    engine.run(1e9)
    count = int(engine.server.counts[at.NEXT])
    started, kind = engine.requests.arrival_s[:count], engine.requests.kind[:count]
    assert (kind == (started % 10.0 >= 5.0)).all()


@pytest.mark.parametrize(
    ("in_flight", "span_s"), [([], 5.0), ([0, 0], 5.0), ([-1, 2], 5.0), ([3], 0.0), ([3], float("inf"))]
)
def test_a_wrong_load_is_refused(in_flight: list[int], span_s: float) -> None:
    with pytest.raises(SimulationInputError, match="expected"):
        ClosedLoad(np.array(in_flight, np.int64), span_s)


def test_a_server_that_is_too_small_for_the_lengths_is_refused(small: Callable[..., EngineProfile]) -> None:
    with pytest.raises(SimulationInputError, match="may have 4000 tokens"):
        SimulatedEngine(ClosedLoad.constant(1, 5.0), small(max_model_len=2000), scenario_of(0.5), seed=0)


def test_no_static_setting_is_ahead_of_the_clairvoyant(h200: EngineProfile) -> None:
    load = ClosedLoad.constant(64, 40.0)
    compared = compare(load, h200, scenario_of(0.6), statics(chains(8)))
    # 40 s of 64 requests emit 400,000 tokens: by luck alone two runs differ by 0.2 %.
    assert min(result.regret_ratio for result in compared.results) > -0.004


def test_seconds_until_back_from_off(h200: EngineProfile) -> None:
    load = ClosedLoad(np.array([8]), 40.0, ((10.0, 20.0), (30.0, 40.0)))
    scenario = flipping((LOW, HIGH, LOW, HIGH), 10.0)
    drafts = simulate(load, h200, scenario, Static(3), seed=0)
    never = simulate(load, h200, scenario, Static(0), seed=0)
    assert drafts.back_s == (0.0, 0.0)
    assert never.back_s == pytest.approx((10.0, 10.0), abs=0.05)
    engine = SimulatedEngine(load, h200, scenario, seed=0)
    for until_s, depth in ((12.5, 0), (30.0, 2), (33.0, 0), (40.0, 1)):
        engine.set_table(table_of(np.full(2, depth)))
        engine.run(until_s)
    assert engine.flips.back_s.tolist() == pytest.approx([2.5, 3.0], abs=0.05)


def test_break_even_is_where_the_best_draft_is_as_good_as_off(h200: EngineProfile) -> None:
    costs = h200.step_costs()
    chance = break_even(h200, 96)

    def rates(at_chance: float) -> list[float]:
        return [
            sum(at_chance**j for j in range(depth + 1))
            / step_seconds(costs, 96, depth, depth + 1, 96 * (depth + 1), 96 * 300, 0, 0)
            for depth in range(9)
        ]

    assert int(np.argmax(rates(chance - 0.005))) == 0
    assert int(np.argmax(rates(chance + 0.005))) > 0


def test_the_suites_shapes_are_named_once_and_last_alike(h200: EngineProfile) -> None:
    shapes = shapes_of(h200, 0)
    names = [shape.name for shape in shapes]
    assert len(set(names)) == len(names) >= 15
    assert all(180 <= shape.load.span_s <= 300 for shape in shapes)
    again = shapes_of(h200, 0)
    assert [shape.scenario for shape in shapes] == [shape.scenario for shape in again]


def test_the_clairvoyant_is_never_off_while_drafting_pays(h200: EngineProfile) -> None:
    load = ClosedLoad(np.array([8]), 20.0, ((10.0, 20.0),))
    done = simulate(load, h200, flipping((0.0, HIGH), 10.0), Clairvoyant(), seed=0)
    assert done.back_s == (0.0,)
