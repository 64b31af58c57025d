"""What is wanted most: bounds on latency, and money."""

from __future__ import annotations

import numpy as np
import pytest
from fakes.forecasts import acceptance, cost, space_of
from fakes.observations import chains

from specctl.core.objective import LatencyBounds, LatencyReading, Objective, Prices

SPACE = space_of(chains(0, 2, 4))
EMITTED = (1.0, 2.0, 2.5)
STEP_S = (0.10, 0.12, 0.20)
"""A token takes 100, 60 and 80 ms."""


def used(bounds: LatencyBounds, reading: LatencyReading | None = None) -> list[float]:
    found = Objective(bounds=bounds).used_ratio(cost(SPACE, STEP_S), acceptance(SPACE, EMITTED), reading)
    return found[0].tolist()  # type: ignore[no-any-return]


def reading(
    tpot_s: float | None = None,
    ttft_s: float | None = None,
    *,
    step_s: float | None = 0.12,
    tokens: float | None = 2.0,
    is_queued: bool = False,
) -> LatencyReading:
    """Measured at a depth of 2."""
    return LatencyReading(tpot_s, ttft_s, step_s, tokens, is_queued)


def test_no_bound_is_never_broken() -> None:
    assert used(LatencyBounds()) == [0.0, 0.0, 0.0]


def test_time_between_two_outputs_is_a_step() -> None:
    assert used(LatencyBounds(max_itl_s=0.1)) == pytest.approx([1.0, 1.2, 2.0])


def test_time_per_token_is_a_step_over_its_tokens() -> None:
    assert used(LatencyBounds(max_tpot_s=0.1)) == pytest.approx([1.0, 0.6, 0.8])


def test_requests_whose_drafts_fare_worse_bound_a_percentile() -> None:
    """At the measured percentile a token took 100 ms: a step gave 1.2 tokens, a fifth of the usual gain."""
    bounds = LatencyBounds(max_tpot_s=0.1, tpot_quantile=0.95)
    found = used(bounds, reading(tpot_s=0.1))
    assert found == pytest.approx([1.0, 0.12 / 1.2 / 0.1, 0.20 / 1.3 / 0.1])
    assert used(bounds, reading(tpot_s=None)) == pytest.approx([1.0, 0.6, 0.8]), "not measured: the mean"
    assert used(bounds, reading(tpot_s=0.01)) == pytest.approx([1.0, 0.6, 0.8]), "none fares better than that"
    slowest = used(bounds, reading(tpot_s=9.0))
    assert slowest == pytest.approx([1.0, 1.2, 2.0]), "none gets less than a token a step"


def test_time_to_the_first_token_waits_for_the_steps_of_others() -> None:
    bounds = LatencyBounds(max_ttft_s=0.3)
    assert used(bounds, reading(ttft_s=0.3)) == pytest.approx([0.1 / 0.12, 1.0, 0.2 / 0.12])


def test_a_queue_drains_at_the_servers_rate() -> None:
    bounds = LatencyBounds(max_ttft_s=0.3)
    found = used(bounds, reading(ttft_s=0.3, is_queued=True))
    assert found == pytest.approx([0.100 / 0.060, 1.0, 0.080 / 0.060])


def test_a_time_to_the_first_token_that_is_not_measured_does_not_bound() -> None:
    bounds = LatencyBounds(max_ttft_s=0.001)
    for unknown in (None, reading(ttft_s=None), reading(ttft_s=1.0, step_s=None)):
        assert used(bounds, unknown) == [0.0, 0.0, 0.0]


def test_of_several_bounds_the_one_broken_most_counts() -> None:
    bounds = LatencyBounds(max_tpot_s=0.05, max_ttft_s=0.1, max_itl_s=10.0)
    found = used(bounds, reading(ttft_s=0.3))
    assert found == pytest.approx([max(2.0, 2.5), max(1.2, 3.0), max(1.6, 5.0)])


def test_time_is_the_price_where_no_money_is_named() -> None:
    assert Objective().price(np.array([0.1, 0.2]), np.array([1.0, 9.0])).tolist() == [0.1, 0.2]


def test_the_price_of_a_step_by_hand() -> None:
    """3.6 an hour are 0.001 a second; a joule costs 1e-6."""
    prices = Prices(3.6, energy_per_kwh=3.6, idle_power_w=1000.0, joules_per_verified_token=100.0)
    found = Objective(prices).price(np.array([1.0, 1.2]), np.array([10.0, 30.0]))
    assert found == pytest.approx([0.001 + 0.001 + 0.001, 0.0012 + 0.0012 + 0.003])
    assert Prices(3.6).of_step(np.array([2.0]), np.array([99.0])).tolist() == [0.002]
