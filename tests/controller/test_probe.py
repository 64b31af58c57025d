"""When a probe is worth its price, and how long the next one waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from specctl.controller.probe import (
    EMPTY_WAIT,
    SHORTEST_WAIT,
    UNKNOWN_PRICE,
    end_probe,
    hastened,
    is_near,
    shortest_interval_s,
    start_probe,
)
from specctl.controller.state import Probe, ProbeSchedule
from specctl.policy.settings import ExplorationSettings
from specctl.types import BucketForecast, CandidateForecast, SurvivalEstimate

SETTINGS = ExplorationSettings(share_max_ratio=0.02, probe_s=2.0, interval_max_s=300.0)


def forecast(
    rates: dict[int, float | None], *, present: int, unmeasured: tuple[int, ...] = ()
) -> BucketForecast:
    """``rates``: tokens per second by num_speculative_tokens; None: what a step takes is unknown."""
    return BucketForecast(
        decode_batch_from=5,
        decode_batch_to=8,
        decode_batch=6.0,
        present_num_speculative_tokens=present,
        candidates=tuple(
            CandidateForecast(k, 6.0 / rate if rate else None, rate, 0.0, 1.0 + k / 4, k not in unmeasured)
            for k, rate in rates.items()
        ),
        is_active=True,
        is_extrapolated=False,
        trials=100.0,
    )


def survival(*, measured: int, watched: int, positions: int = 8) -> SurvivalEstimate:
    return SurvivalEstimate(
        survival_at=tuple(0.8 ** (j + 1) for j in range(positions)),
        drafted_at=(1.0,) * positions,
        conditional_at=(0.8,) * positions,
        trials_at=tuple(20.0 if j < measured else 0.0 for j in range(positions)),
        measured_positions=measured,
        watched_positions=watched,
    )


ALL_KNOWN = survival(measured=8, watched=8)


def probed(
    seen: BucketForecast,
    known: SurvivalEstimate = ALL_KNOWN,
    *,
    schedule: ProbeSchedule | None = None,
    time_s: float = 1000.0,
    settings: ExplorationSettings = SETTINGS,
) -> Probe | None:
    return start_probe(schedule or ProbeSchedule(), settings, seen, known, time_s).running


def ended(
    probe: Probe, *, has_paid: bool, interval_s: float = 0.0, settings: ExplorationSettings = SETTINGS
) -> ProbeSchedule:
    schedule = ProbeSchedule(running=probe, interval_s=interval_s)
    return end_probe(schedule, settings, 100.0, has_paid=has_paid)


@pytest.mark.parametrize(
    ("price", "wait_s"),
    [(0.0, SHORTEST_WAIT * 2.0), (0.05, SHORTEST_WAIT * 2.0), (0.2, 20.0), (1.0, 100.0)],
    ids=["free", "cheap", "dear", "all tokens"],
)
def test_the_wait_is_so_long_that_probes_lose_their_share(price: float, wait_s: float) -> None:
    assert shortest_interval_s(SETTINGS, price) == pytest.approx(wait_s)
    told = Probe(8, 0, 4, 98.0, price_ratio=price)
    assert ended(told, has_paid=True).next_s == pytest.approx(100.0 + wait_s)


def test_the_price_is_what_the_probe_is_expected_to_lose() -> None:
    dear = probed(forecast({0: 60.0, 2: 90.0, 4: 100.0}, present=4, unmeasured=(0,)))
    assert dear is not None
    assert (dear.bucket_to, dear.num_speculative_tokens, dear.resume_num_speculative_tokens) == (8, 0, 4)
    assert dear.price_ratio == pytest.approx(0.4)
    gains = probed(forecast({0: 120.0, 4: 100.0}, present=4, unmeasured=(0,)))
    assert gains is not None
    assert gains.price_ratio == 0.0
    unknown = probed(forecast({0: None, 4: 100.0}, present=4, unmeasured=(0,)))
    assert unknown is not None
    assert unknown.price_ratio == UNKNOWN_PRICE


def test_a_dear_probe_waits_longer_than_one_of_unknown_price() -> None:
    schedule = ProbeSchedule(ended_s=100.0, next_s=105.0)
    dear = forecast({0: 60.0, 4: 100.0}, present=4, unmeasured=(0,))
    unknown = forecast({0: None, 4: None}, present=4, unmeasured=(0,))
    assert probed(dear, schedule=schedule, time_s=139.0) is None
    assert probed(dear, schedule=schedule, time_s=140.0) is not None
    assert probed(unknown, schedule=schedule, time_s=109.0) is None
    assert probed(unknown, schedule=schedule, time_s=110.0) is not None


def test_off_with_nothing_watched_tries_the_least_that_tells_something() -> None:
    off = forecast({0: 100.0, 2: 95.0, 4: 90.0, 8: 80.0}, present=0)
    least = probed(off, survival(measured=0, watched=0))
    assert least is not None
    assert least.num_speculative_tokens == 2
    # Also where all is remembered: it may have changed since.
    assert probed(off, survival(measured=8, watched=0)) == least
    assert probed(off, survival(measured=8, watched=8)) is None, "shadow drafts tell it"


@pytest.mark.parametrize(
    ("present", "measured", "wanted"),
    [(2, 2, 5), (4, 4, 8), (2, 8, None), (8, 8, None), (5, 5, 8)],
    ids=["twice and more", "at most all", "remembered", "nothing above", "the last one"],
)
def test_positions_above_the_present_one_are_tried_once(
    present: int, measured: int, wanted: int | None
) -> None:
    seen = forecast(dict.fromkeys(range(9), 100.0), present=present)
    probe = probed(seen, survival(measured=measured, watched=present))
    assert (None if probe is None else probe.num_speculative_tokens) == wanted


def test_an_unknown_cost_is_tried_only_where_free_drafts_would_pay() -> None:
    seen = forecast({0: 100.0, 2: None, 8: None}, present=0)
    probe = probed(seen)
    assert probe is not None
    assert probe.num_speculative_tokens == 8
    hopeless = seen._replace(
        candidates=tuple(c._replace(tokens_per_request_step=1.001) for c in seen.candidates)
    )
    assert probed(hopeless) is None


def test_no_probe_beside_another_nor_before_its_time_nor_where_none_is_allowed() -> None:
    seen = forecast({0: None, 4: 100.0}, present=4, unmeasured=(0,))
    running = ProbeSchedule(running=Probe(8, 8, 4, 999.0))
    assert start_probe(running, SETTINGS, seen, ALL_KNOWN, 1000.0) is running
    waiting = ProbeSchedule(next_s=1000.5)
    assert start_probe(waiting, SETTINGS, seen, ALL_KNOWN, 1000.0) is waiting
    none = ExplorationSettings(share_max_ratio=0.0)
    assert probed(seen, settings=none) is None
    assert shortest_interval_s(none, 0.0) == float("inf")


def test_the_wait_doubles_while_probes_change_nothing_and_has_an_end() -> None:
    probe = Probe(8, 0, 4, 98.0, price_ratio=0.2, steps=9)
    waits = [0.0]
    for _ in range(6):
        waits.append(ended(probe, has_paid=False, interval_s=waits[-1]).interval_s)
    assert waits[1:] == pytest.approx([20.0, 40.0, 80.0, 160.0, 300.0, 300.0])
    assert ended(probe, has_paid=True, interval_s=160.0).interval_s == pytest.approx(20.0)


def test_a_price_may_ask_for_more_than_the_longest_wait() -> None:
    short = ExplorationSettings.model_construct(share_max_ratio=0.02, probe_s=2.0, interval_max_s=50.0)
    assert ended(Probe(8, 0, 4, 98.0, price_ratio=1.0), has_paid=False, settings=short).interval_s == 100.0


def test_without_a_single_draft_a_probe_is_repeated_soon_and_counts_for_nothing() -> None:
    empty = Probe(8, 8, 4, 98.0, price_ratio=0.3, steps=9)
    after = ended(empty, has_paid=False, interval_s=40.0)
    assert after.next_s == pytest.approx(100.0 + EMPTY_WAIT * 2.0)
    assert (after.running, after.interval_s, after.ended_s) == (None, 40.0, float("-inf"))
    assert ended(empty, has_paid=True).interval_s == pytest.approx(30.0)


def test_other_traffic_brings_the_next_probe_as_soon_as_its_price_allows() -> None:
    waiting = ProbeSchedule(next_s=400.0, interval_s=300.0, ended_s=100.0, price_ratio=0.3)
    assert hastened(waiting, SETTINGS).next_s == pytest.approx(130.0)
    assert hastened(waiting, SETTINGS).interval_s == 0.0
    soon = replace(waiting, next_s=110.0)
    assert hastened(soon, SETTINGS).next_s == 110.0
    empty = ended(Probe(8, 8, 4, 98.0, steps=9), has_paid=False)
    assert hastened(empty, SETTINGS).next_s == empty.next_s, "a batch that goes to and fro is no reason"


def test_a_drift_is_news_where_the_next_probe_is_near_paying() -> None:
    nothing_told = survival(measured=0, watched=0)
    assert is_near(forecast({0: 100.0, 1: 96.0}, present=0), nothing_told)
    assert is_near(forecast({0: 100.0, 1: 120.0}, present=0), nothing_told)
    assert is_near(forecast({0: 100.0, 1: None}, present=0), nothing_told), "an unknown price is no high one"
    assert not is_near(forecast({0: 100.0, 1: 90.0}, present=0), nothing_told)
    assert not is_near(forecast({0: 100.0, 1: 96.0}, present=1), ALL_KNOWN), "nothing is to be asked"
