"""What a row's sampled steps run, and what they may cost."""

from __future__ import annotations

import math

import pytest
from fakes.forecasts import cost, forecast_of, space_of
from fakes.observations import chains
from hypothesis import given, settings
from hypothesis import strategies as st

from specctl.contract.setting import RowSample
from specctl.core.forecast import Forecast
from specctl.core.sampling import (
    EVERY_MAX_STEPS,
    FIRST_EVERY_STEPS,
    FIRST_S,
    SEARCH_EVERY_STEPS,
    SEARCH_FACTOR,
    STICKY,
    WATCH_S,
    choose_sample,
)
from specctl.core.settings import SamplingSettings

SETTINGS = chains(0, 1, 2)
SPACE = space_of(SETTINGS)
STEPS = (0.010, 0.010, 0.010)
SHARE = 0.005
NAN = float("nan")


def sample(
    expected: Forecast,
    *,
    chosen: int = 0,
    may: tuple[bool, ...] = (True, True, True),
    share: float = SHARE,
    least: int = 2,
    now: RowSample | None = None,
) -> RowSample | None:
    settings = SamplingSettings(share_max_ratio=share)
    numbers = [number for number, is_allowed in enumerate(may) if is_allowed]
    return choose_sample(expected, 0, chosen, numbers, settings, least, now)


def expects(
    *emitted: float, sigma: tuple[float, ...] = (0.0, 0.0, 0.0), present: int = 0, measured: bool = True
) -> Forecast:
    steps = cost(SPACE, STEPS, measured=measured)
    steps.sigma[0] = sigma
    return forecast_of(SPACE, emitted, steps, present=present)


def test_what_everything_is_judged_by_is_measured_first() -> None:
    unmeasured = expects(1.0, 1.5, 1.8, present=2, measured=False)
    found = sample(unmeasured, chosen=2)
    assert found == RowSample(setting=SETTINGS[0], every_steps=math.ceil(FIRST_S / 0.010))
    assert sample(unmeasured, chosen=2, now=found) is found
    assert sample(unmeasured, chosen=2, least=400).every_steps == 400  # type: ignore[union-attr]
    nothing = forecast_of(SPACE, (1.0, 1.5, 1.8), cost(SPACE, (NAN,) * 3, measured=False), present=2)
    assert sample(nothing, chosen=2) == RowSample(setting=SETTINGS[0], every_steps=FIRST_EVERY_STEPS)


def test_among_prompts_off_is_not_measured_before_the_rest() -> None:
    """Its seconds would be those of the prompts."""
    steps = cost(SPACE, STEPS, measured=False, mixed_share=0.8)
    found = sample(forecast_of(SPACE, (1.0, 1.5, 1.8), steps, present=1), chosen=1)
    assert found is not None
    assert found.setting == SETTINGS[2]


def test_what_may_be_better_is_sampled() -> None:
    """2 is less than 1 by the mean, but it is so unsure that it may be more."""
    unsure = expects(1.0, 0.95, 0.9, sigma=(0.0, 0.0, 0.3))
    assert sample(unsure).setting == SETTINGS[2]  # type: ignore[union-attr]
    sure = expects(1.0, 0.95, 0.9)
    assert sample(sure).setting == SETTINGS[1]  # type: ignore[union-attr]


def test_a_search_may_cost_more_than_a_watch() -> None:
    """A tenth is lost at every sample, but one that may be better is worth four times the share."""
    watched = sample(expects(1.0, 0.9, 0.5))
    assert watched is not None
    assert watched.every_steps == pytest.approx(0.1 / SHARE, abs=WATCH_S / 0.010)
    unsure = expects(1.0, 0.9, 0.5, sigma=(0.0, 0.15, 0.0))
    searched = sample(unsure)
    assert searched is not None
    loss = unsure.sigma[0, 1] - unsure.gain[0, 1]
    assert searched.every_steps == pytest.approx(loss / SHARE / SEARCH_FACTOR, abs=1.0)


def test_a_dear_sample_runs_seldom_and_never_costs_more_than_its_share() -> None:
    for lost in (0.3, 0.5, 0.9):
        found = sample(expects(1.0, 1.0 - lost, 0.01))
        assert found is not None
        assert lost / found.every_steps <= SHARE


def test_the_smallest_share_is_no_infinite_interval() -> None:
    found = sample(expects(1.0, 0.95, 0.9), share=5e-324)
    assert found is not None
    assert found.every_steps == EVERY_MAX_STEPS


def test_a_larger_share_samples_more_often() -> None:
    expected = expects(1.0, 0.5, 0.4)
    every = [sample(expected, share=share).every_steps for share in (0.001, 0.005, 0.05)]  # type: ignore[union-attr]
    assert every == sorted(every, reverse=True)
    assert every[0] == pytest.approx(5 * every[1], rel=0.01)


def test_no_share_no_samples() -> None:
    assert sample(expects(1.0, 1.5, 1.8), share=0.0) is None


def test_nothing_else_that_may_run_no_samples() -> None:
    assert sample(expects(1.0, 1.5, 1.8), may=(True, False, False)) is None


def test_only_what_may_run_is_sampled() -> None:
    assert sample(expects(1.0, 1.5, 1.8), may=(True, True, False)).setting == SETTINGS[1]  # type: ignore[union-attr]


def test_samples_come_no_more_often_than_the_engine_can_and_a_search_not_at_every_step() -> None:
    unsure = expects(1.0, 1.0, 1.0, sigma=(0.0, 0.0, 0.2))
    assert sample(unsure, share=0.5).every_steps == SEARCH_EVERY_STEPS  # type: ignore[union-attr]
    assert sample(unsure, share=0.5, least=20).every_steps == 20  # type: ignore[union-attr]


def test_a_sample_stays_while_it_is_about_as_often_as_wanted() -> None:
    expected = expects(1.0, 0.5, 0.4)
    wanted = sample(expected)
    assert wanted is not None
    near = wanted.model_copy(update={"every_steps": round(wanted.every_steps * STICKY * 0.95)})
    far = wanted.model_copy(update={"every_steps": round(wanted.every_steps * STICKY * 1.2)})
    assert sample(expected, now=near) is near
    assert sample(expected, now=far) == wanted
    other = RowSample(setting=SETTINGS[2], every_steps=wanted.every_steps)
    assert sample(expected, now=other) == wanted


def test_where_no_cost_is_known_something_is_sampled() -> None:
    steps = cost(SPACE, (NAN, NAN, NAN))
    found = sample(forecast_of(SPACE, (1.0, 1.5, 1.8), steps, is_active=False))
    assert found is not None
    assert found.every_steps >= 2


@settings(deadline=None)
@given(
    st.tuples(*[st.floats(0.01, 9.0)] * 2),
    st.tuples(*[st.floats(0.0, 3.0)] * 3),
    st.integers(0, 2),
    st.floats(1e-4, 0.5),
    st.integers(2, 500),
)
def test_any_sample_is_one_that_the_engine_takes(
    emitted: tuple[float, ...], sigma: tuple[float, ...], chosen: int, share: float, least: int
) -> None:
    found = sample(expects(1.0, *emitted, sigma=sigma), chosen=chosen, share=share, least=least)
    assert found is not None
    assert found.setting in SETTINGS
    assert found.setting != SETTINGS[chosen]
    assert least <= found.every_steps <= 1_000_000
