from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.engine import COPYING, RANDOM_TEXT, FakeEngine
from fakes.observations import cell, observation

from specctl.contract.telemetry import Telemetry
from specctl.controller.core import step
from specctl.controller.regret import Regret
from specctl.controller.state import ControllerState
from specctl.estimate.step_cost import DiscountedStepCost
from specctl.estimate.survival import DiscountedSurvival
from specctl.observe.counters import cell_deltas, shadow_delta
from specctl.policy.loader import parse_policy
from specctl.types import (
    BucketChoice,
    BucketForecast,
    CandidateForecast,
    CellDelta,
    Decision,
    Observation,
    Reason,
)

GOODPUT = parse_policy("kind: goodput", "p")
Rates = dict[int, float | None]


def forecast(rates: Rates, *, present: int, bucket: int = 1) -> BucketForecast:
    return BucketForecast(
        decode_batch_from=bucket,
        decode_batch_to=bucket,
        decode_batch=float(bucket),
        present_num_speculative_tokens=present,
        candidates=tuple(
            CandidateForecast(k, None if rate is None else 1.0 / rate, rate, 0.0, 1.0)
            for k, rate in rates.items()
        ),
        is_active=True,
        is_extrapolated=False,
        trials=100.0,
    )


def decision(*forecasts: BucketForecast, probe: int | None = None) -> Decision:
    choices = ()
    if probe is not None:
        present = forecasts[0].present_num_speculative_tokens
        choices = (BucketChoice(1, 1, present, probe, Reason.PROBE, is_active=True),)
    return Decision("t", 1.0, (), Reason.NO_BETTER, "", choices, forecasts=forecasts)


def steps(tokens_per_s: int, number: int, *, bucket: int = 1) -> CellDelta:
    """A second of 10 steps."""
    seen = cell(tokens=number, accepted_at=(0,) * number, decode_batch=bucket)
    return replace(seen, emitted_tokens=tokens_per_s)


def test_off_and_the_best_number_in_one_bucket() -> None:
    regret = Regret()
    for _ in range(60):
        regret = regret.updated(
            observation(steps(20, 4)), decision(forecast({0: 10.0, 4: 20.0, 8: 25.0}, present=4))
        )
    assert regret.off_ratio == pytest.approx(1 - 20 / 10)
    assert regret.best_static == 8
    assert regret.best_static_ratio == pytest.approx(1 - 20 / 25)
    assert regret.left_out_looks == 0


def test_a_table_that_follows_the_load_beats_every_number() -> None:
    """8 is best alone and worst in company; a static server takes the same tokens at the same batches."""
    alone: Rates = {0: 10.0, 2: 15.0, 8: 20.0}
    full: Rates = {0: 100.0, 2: 90.0, 8: 50.0}
    regret = Regret()
    for _ in range(60):
        regret = regret.updated(observation(steps(20, 8)), decision(forecast(alone, present=8)))
        regret = regret.updated(
            observation(steps(100, 0, bucket=8)), decision(forecast(full, present=0, bucket=8))
        )
    seconds = {k: 20 / alone[k] + 100 / full[k] for k in alone}  # type: ignore[operator]
    assert regret.best_static == min(seconds, key=seconds.__getitem__) == 2
    assert regret.best_static_ratio == pytest.approx(1 - seconds[2] / 2, rel=0.01)


def test_unknown_costs_are_left_out_and_counted() -> None:
    regret = Regret()
    for _ in range(20):
        regret = regret.updated(observation(steps(20, 4)), decision(forecast({0: None, 4: 20.0}, present=4)))
    assert (regret.off_ratio, regret.best_static_ratio, regret.best_static) == (None, None, None)
    assert regret.left_out_looks == 20
    assert regret.exploration_time_ratio == 0.0
    nothing = Decision("t", 1.0, None, Reason.NOT_MEASURED, "")
    assert regret.updated(observation(steps(20, 4)), nothing).left_out_looks == 21
    assert regret.updated(observation(), decision()).left_out_looks == 20


def test_a_number_that_was_seldom_predicted_does_not_compete() -> None:
    regret = Regret()
    for i in range(40):
        rates: Rates = {0: 10.0, 4: 20.0, 16: 90.0 if i < 20 else None}
        regret = regret.updated(observation(steps(20, 4)), decision(forecast(rates, present=4)))
    assert regret.best_static == 4


def test_too_little_is_not_known() -> None:
    regret = Regret().updated(observation(steps(20, 4)), decision(forecast({0: 10.0, 4: 20.0}, present=4)))
    assert (regret.off_ratio, regret.exploration_lost_ratio) == (None, None)


def test_the_past_is_forgotten_by_half_in_ten_minutes() -> None:
    regret = Regret()
    for off in (10.0, 40.0):
        seen = decision(forecast({0: off, 4: 20.0}, present=4))
        for _ in range(600):
            regret = regret.updated(observation(steps(20, 4)), seen)
    assert regret.off_ratio == pytest.approx(1 - (2.0 + 2 * 0.5) / 3, abs=0.01)


def test_what_misleads_every_prediction_alike_is_no_regret() -> None:
    """Steps take twice as long as predicted, whatever is drafted."""
    regret = Regret()
    for _ in range(20):
        regret = regret.updated(observation(steps(10, 4)), decision(forecast({0: 10.0, 4: 20.0}, present=4)))
    assert regret.off_ratio == pytest.approx(-1.0)
    assert regret.best_static_ratio == pytest.approx(0.0)


def test_the_price_of_probes() -> None:
    """One second in ten at off, which is half as fast: 1 of 10 seconds, 10 of 200 tokens."""
    rates: Rates = {0: 10.0, 4: 20.0}
    regret = Regret()
    for _ in range(20):
        for second in range(10):
            seen = steps(10, 0) if second == 9 else steps(20, 4)
            settled = decision(forecast(rates, present=4), probe=0 if second == 8 else None)
            regret = regret.updated(observation(seen), settled)
    assert regret.exploration_time_ratio == pytest.approx(0.1, rel=0.02)
    assert regret.exploration_lost_ratio == pytest.approx(0.05, rel=0.02)


def test_no_difference_between_two_reads_changes_nothing() -> None:
    blind = Observation(target="t", time_s=1.0)
    assert Regret().updated(blind, decision(forecast({0: 1.0}, present=0))) == Regret()


def with_the_core(engine: FakeEngine, seconds: int) -> tuple[Regret, dict[bool, int]]:
    """A minute each of copying and random text in turn; with the tokens emitted while copying and not."""
    regret, tokens = Regret(), {True: 0, False: 0}
    state = ControllerState(survival=DiscountedSurvival(), cost=DiscountedStepCost())
    before = Telemetry.model_validate(engine.telemetry())
    for second in range(seconds):
        is_copying = second % 120 < 60
        engine.traffic = COPYING if is_copying else RANDOM_TEXT
        tokens[is_copying] += engine.advance(1.0)
        after = Telemetry.model_validate(engine.telemetry())
        seen = Observation(
            target="t",
            time_s=engine.time_s,
            interval_s=1.0,
            capabilities=engine.capabilities(),
            applied=engine.applied(),
            cells=cell_deltas(before, after),
            shadow=shadow_delta(before.shadow, after.shadow),
        )
        before = after
        decided, state = step(seen, state, GOODPUT)
        if decided.rows is not None:
            engine.rows = decided.rows
        regret = regret.updated(seen, decided)
    return regret, tokens


def test_predicted_regret_is_the_regret_of_engines_that_run_the_other_settings() -> None:
    regret, tokens = with_the_core(FakeEngine(start_tokens=4), 240)
    real = {}
    for number in (0, regret.best_static or 8):
        rates = {
            is_copying: FakeEngine(start_tokens=number, traffic=traffic).advance(120.0) / 120.0
            for is_copying, traffic in ((True, COPYING), (False, RANDOM_TEXT))
        }
        real[number] = 1.0 - sum(tokens[at] / rates[at] for at in tokens) / 240.0
    assert regret.best_static is not None
    assert regret.best_static >= 7
    # The window forgets a quarter of the first minutes, and every estimate lags behind a change of traffic.
    assert regret.off_ratio == pytest.approx(real[0], rel=0.1)
    assert regret.best_static_ratio == pytest.approx(real[regret.best_static], abs=0.05)
