"""Sums of the last seconds."""

from __future__ import annotations

import pytest
from fakes.observations import cell, observation, shadow

from specctl.contract.setting import Setting
from specctl.core.messages import Choice, Reason
from specctl.types import Observation, StockDelta
from specctl.watch.window import PART_S, WINDOW_S, Interval, Window, of_poll

OFF, FOUR = Setting(num_speculative_tokens=0), Setting(num_speculative_tokens=4)


def choice(present: float | None, off: float | None) -> Choice:
    return Choice(1, 1, FOUR, FOUR, Reason.NO_BETTER, present_tokens_per_s=present, off_tokens_per_s=off)


def test_rates_are_of_step_time_and_off_is_of_the_same_steps() -> None:
    drafting = cell(steps=10, accepted_at=(8, 6, 4, 2), step_s=0.1)
    alone = cell(steps=5, tokens=0, accepted_at=(), step_s=0.05)
    prompts = cell(steps=3, accepted_at=(1, 0, 0, 0), has_prefill=True)
    found = of_poll(observation(drafting, alone, prompts), [choice(30.0, 10.0)])
    assert found is not None
    assert found.emitted_tokens == 30 + 5 + 4
    assert found.decode_tokens_per_s == pytest.approx(35 / 1.25)
    assert found.off_tokens_per_s == pytest.approx(35 / (3.0 + 0.25)), "steps without drafts are off already"


@pytest.mark.parametrize(("present", "off"), [(None, 10.0), (30.0, None), (30.0, 0.0)])
def test_without_a_forecast_there_is_nothing_to_compare(present: float | None, off: float | None) -> None:
    found = of_poll(observation(cell()), [choice(present, off)])
    assert found is not None
    assert found.decode_tokens_per_s is None
    assert found.off_tokens_per_s is None
    assert found.emitted_tokens > 0


def test_acceptance_is_that_of_steps_that_could_draft() -> None:
    short = cell(steps=10, tokens=1, accepted_at=(2,))
    long = cell(steps=10, tokens=4, accepted_at=(8, 6, 4, 2))
    alone = cell(steps=50, tokens=0, accepted_at=())
    found = of_poll(observation(short, long, alone), [])
    assert found is not None
    assert found.acceptance_rate == pytest.approx(22 / 50)
    assert found.acceptance_length == pytest.approx(1 + 22 / 20)
    assert found.efficiency == pytest.approx((20 + 22) / (10 * 2 + 10 * 5))
    assert found.survival_at == pytest.approx((0.5, 0.5 * 6 / 8, 0.5 * 4 / 8, 0.5 * 2 / 8))


def test_shadow_drafts_tell_more_than_steps_and_stock_counters_where_there_is_nothing_else() -> None:
    followed = observation(cell(), shadow=shadow(10, (9, 3)))
    found = of_poll(followed, [])
    assert found is not None
    assert found.survival_at == pytest.approx((0.9, 0.3))
    stock = Observation(target="t", time_s=1.0, stock=StockDelta(drafts=10, accepted_at=(5, 2)))
    found = of_poll(stock, [])
    assert found is not None
    assert found.survival_at == pytest.approx((0.5, 0.2))
    assert found.acceptance_length == pytest.approx(1.7)
    assert found.acceptance_rate is None
    assert of_poll(Observation(target="t", time_s=1.0), []) is None


def test_nothing_measured_is_none() -> None:
    nothing = Interval()
    for name in ("emitted_tokens_per_s", "acceptance_rate", "acceptance_length", "efficiency", "survival_at"):
        assert getattr(nothing, name) is None, name


def test_a_window_forgets_what_is_older() -> None:
    window = Window()
    for _ in range(100):
        window.add(Interval(interval_s=1.0, emitted_tokens=10))
    assert WINDOW_S <= window.total().interval_s <= WINDOW_S + PART_S
    for _ in range(int(WINDOW_S + 2 * PART_S)):
        window.add(Interval(interval_s=1.0))
    assert window.total().emitted_tokens == 0
    window.add(Interval(interval_s=1000.0, emitted_tokens=7))
    window.add(Interval(interval_s=1000.0, emitted_tokens=8))
    assert window.total().emitted_tokens == 8, "a poll is never cut, and the last one is over the window"
