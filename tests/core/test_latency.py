"""Latency as the engine measured it, beside the steps it was measured among."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.observations import cell, observation

from specctl.core.latency import HALF_LIFE_S, MeanLatency
from specctl.core.objective import LatencyBounds, LatencyReading
from specctl.types import Histogram, Observation, StockDelta

BOUNDS = LatencyBounds(max_tpot_s=1.0, tpot_quantile=0.5, max_ttft_s=1.0)
UPPER_S = (0.1, 0.2, 0.4)
STEPS = cell(steps=10, tokens=4, accepted_at=(8, 6, 4, 2), step_s=0.1)
"""A second, with 3 tokens a step."""


def poll(
    *, tpot: tuple[float, ...] | None = None, ttft: tuple[float, ...] | None = None, waiting: int = 0,
    cells: bool = True,
) -> Observation:  # fmt: skip
    seen = replace(observation(*((STEPS,) if cells else ())), waiting=waiting)
    if tpot is None and ttft is None:
        return seen
    histograms = [None if counts is None else Histogram(UPPER_S, counts) for counts in (ttft, tpot)]
    return replace(seen, stock=StockDelta(None, None, ttft=histograms[0], tpot=histograms[1]))


def after(*polls: Observation) -> LatencyReading | None:
    latency = MeanLatency()
    for one in polls:
        latency.update(one)
    return latency.reading(BOUNDS)


def test_percentile_and_mean_and_the_steps_beside_them() -> None:
    found = after(poll(), poll(tpot=(2.0, 2.0, 0.0, 0.0), ttft=(0.0, 4.0, 0.0, 0.0)))
    assert found is not None
    assert found.tpot_s == pytest.approx(0.1)
    assert found.ttft_s == pytest.approx(0.15)
    assert (found.step_s, found.tokens_per_step) == (pytest.approx(0.1), pytest.approx(3.0))
    assert not found.is_queued


def test_requests_wait_where_they_do_at_most_polls() -> None:
    last = poll(tpot=(9.0, 0.0, 0.0, 0.0), waiting=3)
    assert after(poll(), poll(waiting=1), last).is_queued  # type: ignore[union-attr]
    assert not after(poll(), poll(), last).is_queued  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "polls",
    [(), (poll(),), (poll(cells=False), poll(tpot=(9.0, 0.0, 0.0, 0.0), cells=False))],
    ids=["nothing", "no reading of the engine's metrics", "no steps"],
)
def test_what_is_not_measured_is_not_known(polls: tuple[Observation, ...]) -> None:
    assert after(*polls) is None


def test_too_few_requests_are_no_percentile_and_no_mean() -> None:
    found = after(poll(), poll(tpot=(1.0, 1.0, 0.0, 0.0), ttft=(1.0, 0.0, 0.0, 0.0)))
    assert found is not None
    assert (found.tpot_s, found.ttft_s) == (None, None)


def test_the_past_is_forgotten() -> None:
    slow, fast = (poll(tpot=(0.0, 0.0, 9.0, 0.0)), poll(tpot=(9.0, 0.0, 0.0, 0.0)))
    latency = MeanLatency()
    for _ in range(60):
        latency.update(slow)
    for _ in range(round(3 * HALF_LIFE_S)):
        latency.update(fast)
    found = latency.reading(BOUNDS)
    assert found is not None
    assert found.tpot_s is not None
    assert found.tpot_s < 0.1


def test_steps_between_two_readings_belong_to_the_second() -> None:
    slow = cell(steps=10, tokens=4, accepted_at=(0,) * 4, step_s=0.3)
    between = observation(slow)
    found = after(poll(), between, poll(tpot=(9.0, 0.0, 0.0, 0.0)))
    assert found is not None
    assert found.step_s == pytest.approx((1.0 + 3.0 + 1.0) / 30)


def test_other_bins_begin_afresh() -> None:
    first = poll(tpot=(9.0, 0.0, 0.0, 0.0))
    other = replace(first, stock=StockDelta(None, None, tpot=Histogram((1.0, 2.0), (0.0, 8.0, 0.0))))
    found = after(first, other)
    assert found is not None
    assert found.tpot_s == pytest.approx(1.5)


def test_counts_beyond_64_bits_are_numbers_too() -> None:
    huge = STEPS.model_copy(update={"steps": 10**20, "emitted_tokens": 10**20})
    assert after(replace(observation(huge)), poll(tpot=(2.0, 2.0, 0.0, 0.0))) is not None
