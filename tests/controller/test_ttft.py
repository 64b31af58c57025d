from __future__ import annotations

from dataclasses import replace

import pytest
from fakes.observations import cell, observation

from specctl.controller.ttft import MeanTtft
from specctl.types import Observation, StockDelta


def look(requests: int | None = None, wait_s: float | None = None, *, waiting: int = 0) -> Observation:
    """A second of 10 steps of 0.1 s with 5 tokens each; with a reading where ``requests`` is given."""
    seen = observation(cell(tokens=4, accepted_at=(10, 10, 10, 10)))
    stock = StockDelta(None, None, None, None, None, None, requests, wait_s)
    return replace(seen, waiting=waiting, stock=None if requests is None else stock)


def after(*looks: Observation) -> MeanTtft:
    mean = MeanTtft()
    for seen in looks:
        mean = mean.updated(seen)
    return mean


def test_the_mean_and_the_steps_beside_it() -> None:
    estimate = after(look(), look(), look(4, 2.0)).estimate()
    assert estimate is not None
    assert estimate.ttft_s == pytest.approx(0.5)
    assert estimate.step_s == pytest.approx(0.1)
    assert estimate.tokens_per_s == pytest.approx(50.0)
    assert not estimate.is_queued


def test_a_queue_at_most_looks() -> None:
    estimate = after(look(waiting=3), look(4, 2.0, waiting=1), look()).estimate()
    assert estimate is not None
    assert estimate.is_queued


@pytest.mark.parametrize(
    "looks",
    [(look(),), (look(2, 1.0),), (look(4, None),), (look(4, 2.0), *(look(),) * 20)],
    ids=["never read", "two requests", "no sum", "20 s ago"],
)
def test_unknown(looks: tuple[Observation, ...]) -> None:
    assert after(*looks).estimate() is None


def test_the_past_is_forgotten() -> None:
    estimate = after(look(10, 50.0), *(look(),) * 59, look(10, 1.0)).estimate()
    assert estimate is not None
    assert estimate.ttft_s < 0.5


def test_a_reading_without_steps_is_unknown() -> None:
    idle = replace(look(9, 3.0), cells=())
    assert after(idle).estimate() is None
