from __future__ import annotations

import random
from itertools import pairwise

import pytest
from fakes.observations import cell, observation, shadow
from hypothesis import given
from hypothesis import strategies as st

from specctl.estimate.survival import DiscountedSurvival
from specctl.types import Observation, StockDelta, SurvivalEstimate


def after(*seen: Observation, positions: int = 4) -> SurvivalEstimate:
    model = DiscountedSurvival()
    for one in seen:
        model = model.updated(one)
    estimate = model.estimate(positions)
    assert estimate is not None
    return estimate


def drawn(rng: random.Random, rates: tuple[float, ...], drafts: int) -> tuple[int, ...]:
    counts = [0] * len(rates)
    for _ in range(drafts):
        for j, rate in enumerate(rates):
            if rng.random() >= rate:
                break
            counts[j] += 1
    return tuple(counts)


def test_nothing_counted_is_unknown() -> None:
    assert DiscountedSurvival().estimate(4) is None
    assert DiscountedSurvival().updated(observation()).estimate(4) is None
    assert DiscountedSurvival().updated(observation(cell(), interval_s=None)).estimate(4) is None


def test_survival_is_the_product_of_the_conditionals() -> None:
    many = cell(steps=1000, accepted_at=(800, 400, 300, 30))
    estimate = after(observation(many))
    assert estimate.survival_at == pytest.approx((0.8, 0.4, 0.3, 0.03), abs=0.01)
    assert estimate.conditional_at[1] == pytest.approx(0.5, abs=0.01)
    assert estimate.accepted_tokens(2) == pytest.approx(1.2, abs=0.02)


def test_positions_above_the_setting_are_censored() -> None:
    """Steps at 2 tokens tell nothing of position 3: its rate rests on the steps at 4 alone."""
    short = cell(steps=1000, tokens=2, accepted_at=(900, 810))
    long = cell(steps=100, tokens=4, accepted_at=(90, 81, 40, 20))
    estimate = after(observation(short, long))
    assert estimate.conditional_at[2] == pytest.approx(40 / 81, abs=0.02)
    assert estimate.measured_positions == 4


def test_a_position_never_tried_is_extrapolated() -> None:
    estimate = after(observation(cell(steps=1000, tokens=2, accepted_at=(900, 810))))
    assert estimate.measured_positions == 2
    assert estimate.survival_at[2] == pytest.approx(0.9**3, abs=0.01)


def test_a_short_draft_counts_as_not_accepted() -> None:
    estimate = after(observation(cell(steps=100, drafted_at=(50, 50, 0, 0), accepted_at=(50, 50, 0, 0))))
    assert estimate.survival_at[0] == pytest.approx(0.5, abs=0.02)
    assert estimate.survival_at[3] < 0.01
    assert estimate.drafted_tokens(4) == pytest.approx(1.0, abs=0.05)


def test_shadow_drafts_come_first() -> None:
    both = observation(cell(steps=100, accepted_at=(0, 0, 0, 0)), shadow=shadow(100, (90, 80, 70, 60)))
    assert after(both).survival_at[0] == pytest.approx(0.9, abs=0.01)


def test_stock_counters() -> None:
    stock = StockDelta(
        drafts=100, drafted_tokens=300, accepted_tokens=120, accepted_at=(80, 40, 0), generated_tokens=0,
        engine_steps=0,
    )  # fmt: skip
    seen = Observation(target="t", time_s=1.0, interval_s=1.0, stock=stock)
    assert after(seen, positions=3).survival_at == pytest.approx((0.8, 0.4, 0.0), abs=0.02)


def test_off_without_shadow_watches_nothing() -> None:
    on, off = (
        observation(cell(steps=20, accepted_at=(9, 8, 7, 6))),
        observation(cell(tokens=0, accepted_at=())),
    )
    assert after(on).watched_positions == 4
    assert after(on, off).watched_positions == 0


def test_positions_not_watched_are_remembered_longer() -> None:
    long = observation(cell(steps=100, accepted_at=(80, 60, 40, 20)))
    short = observation(cell(steps=10, tokens=2, accepted_at=(8, 6)))
    both = after(*(long,) * 10, *(short,) * 30)
    only_short = after(*(short,) * 30)
    # 30 s at a half-life of 4 s have left nothing of the first steps where the new ones are watched ...
    assert both.trials_at[0] == pytest.approx(only_short.trials_at[0], rel=0.15)
    # ... and at 60 s most of what was learned of the others.
    learned = after(*(long,) * 10).trials_at[2]
    assert 0.6 * learned < both.trials_at[2] < 0.8 * learned
    assert both.measured_positions == 4
    assert both.conditional_at[3] == pytest.approx(0.5, abs=0.01)


def test_positions_not_watched_are_forgotten_at_last_and_with_a_drift() -> None:
    long = observation(cell(steps=100, accepted_at=(80, 60, 40, 20)))
    short = observation(cell(steps=10, tokens=2, accepted_at=(8, 6)))
    assert after(long, *(short,) * 900).measured_positions == 2
    other = observation(cell(steps=100, tokens=2, accepted_at=(5, 0)))
    drifted = after(*(long,) * 10, other)
    assert drifted.drifted
    assert drifted.measured_positions == 2


@pytest.mark.parametrize(
    ("before", "later"),
    [((0.9,) * 4, (0.05,) * 4), ((0.1,) * 4, (0.95,) * 4), ((0.95,) * 4, (0.4,) * 4)],
    ids=["collapse", "rise", "fall"],
)
def test_a_change_is_followed_within_three_looks(before: tuple[float, ...], later: tuple[float, ...]) -> None:
    rng = random.Random(7)
    model = DiscountedSurvival()
    for _ in range(60):
        model = model.updated(observation(shadow=shadow(8, drawn(rng, before, 8))))
    for _ in range(3):
        model = model.updated(observation(shadow=shadow(8, drawn(rng, later, 8))))
    estimate = model.estimate(4)
    assert estimate is not None
    assert estimate.survival_at[0] == pytest.approx(later[0], abs=0.2)


def test_two_full_drafts_in_a_row_end_a_time_without_any() -> None:
    """One request off on a CPU: a full draft takes about a second, so two are two seconds of evidence."""
    model = DiscountedSurvival()
    for _ in range(20):
        model = model.updated(observation(shadow=shadow(10, (1, 0, 0, 0, 0, 0, 0, 0))))
    for _ in range(2):
        model = model.updated(observation(shadow=shadow(1, (1,) * 8)))
    estimate = model.estimate(8)
    assert estimate is not None
    assert estimate.drifted
    assert estimate.accepted_tokens(8) > 3


def test_steady_traffic_is_seldom_taken_for_drift() -> None:
    rng = random.Random(3)
    model = DiscountedSurvival()
    alarms = 0
    for _ in range(1000):
        model = model.updated(observation(shadow=shadow(10, drawn(rng, (0.6, 0.7, 0.8, 0.8), 10))))
        alarms += model.drifted
    assert alarms <= 15


@given(
    st.integers(1, 50),
    st.lists(st.floats(0, 1), min_size=1, max_size=6),
    st.integers(1, 8),
    st.integers(0, 2**32),
)
def test_survival_never_rises_and_stays_within_bounds(
    drafts: int, rates: list[float], positions: int, seed: int
) -> None:
    rng = random.Random(seed)
    model = DiscountedSurvival()
    for _ in range(5):
        model = model.updated(observation(shadow=shadow(drafts, drawn(rng, tuple(rates), drafts))))
    estimate = model.estimate(positions)
    assert estimate is not None
    values = (1.0, *estimate.survival_at)
    assert all(0 <= b <= a <= 1 for a, b in pairwise(values))
    assert all(0 <= value <= 1 for value in estimate.drafted_at)
