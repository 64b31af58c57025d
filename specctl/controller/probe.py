"""Bounded probes: a short excursion of the busy bucket to a setting whose cost or acceptance is unknown.

A probe has a price, the share of the bucket's tokens that it is expected to lose while it runs, and the wait
after it is so long that all of them lose at most ``share_max_ratio``. The wait doubles while probes change
nothing, and starts again when the acceptance drifts to where a probe is near paying. A probe that
met no draft at all is not counted: it is repeated soon.
"""

from __future__ import annotations

from dataclasses import replace

from specctl.controller.state import Probe, ProbeSchedule
from specctl.policy.base import Exploration
from specctl.types import BucketForecast, Observation, SurvivalEstimate

__all__ = [
    "end_probe",
    "followed",
    "hastened",
    "is_near",
    "is_over",
    "shortest_interval_s",
    "start_probe",
]

# A probe on a server that stands still ends after this many times its length.
OVERTIME = 3.0
# Wait after a probe without a single draft, in lengths of a probe.
EMPTY_WAIT = 4.0
# However little a probe loses, so many lengths of it pass before the next.
SHORTEST_WAIT = 5.0
# Of a setting with an unknown cost, as a share of the tokens.
UNKNOWN_PRICE = 0.05
# A drift is news where the next probe is expected to lose no more. Texts differ all the time, and a probe of
# hundreds of requests sees it; where drafting loses much, that changes nothing.
NEAR_PRICE = 0.05


def followed(probe: Probe, observation: Observation) -> Probe:
    """The probe with the steps that its bucket took at its value since the last look."""
    wanted = (probe.bucket_to, probe.num_speculative_tokens)
    cells = [
        cell
        for cell in observation.cells or ()
        if (cell.decode_batch_to, cell.num_speculative_tokens) == wanted
    ]
    steps = probe.steps + sum(cell.steps for cell in cells)
    return replace(
        probe, steps=steps, drafted_tokens=probe.drafted_tokens + sum(sum(c.drafted_at) for c in cells)
    )


def is_over(probe: Probe, exploration: Exploration, time_s: float) -> bool:
    """Whether the probe has had its seconds, and any step at all (or overtime)."""
    elapsed_s = time_s - probe.started_s
    return elapsed_s >= OVERTIME * exploration.probe_s or (
        elapsed_s >= exploration.probe_s and probe.steps > 0
    )


def shortest_interval_s(exploration: Exploration, price_ratio: float) -> float:
    """Between two probes that are expected to lose ``price_ratio`` of the tokens while they run."""
    if exploration.share_max_ratio <= 0:
        return float("inf")
    return exploration.probe_s * max(price_ratio / exploration.share_max_ratio, SHORTEST_WAIT)


def end_probe(
    schedule: ProbeSchedule, exploration: Exploration, time_s: float, *, has_paid: bool
) -> ProbeSchedule:
    if schedule.running is not None and schedule.running.is_empty and not has_paid:
        soonest_s = time_s + EMPTY_WAIT * exploration.probe_s
        return replace(schedule, running=None, next_s=soonest_s, soonest_s=soonest_s)
    price = schedule.price_ratio if schedule.running is None else schedule.running.price_ratio
    shortest_s = shortest_interval_s(exploration, price)
    doubled_s = min(max(2.0 * schedule.interval_s, shortest_s), max(exploration.interval_max_s, shortest_s))
    interval_s = shortest_s if has_paid else doubled_s
    return replace(
        schedule,
        running=None,
        next_s=time_s + interval_s,
        interval_s=interval_s,
        ended_s=time_s,
        price_ratio=price,
    )


def is_near(forecast: BucketForecast, survival: SurvivalEstimate) -> bool:
    """Whether the next probe of a bucket is expected to lose little, if anything."""
    wanted = _what_to_probe(forecast, survival)
    return wanted is not None and _price(forecast, wanted) <= NEAR_PRICE


def hastened(schedule: ProbeSchedule, exploration: Exploration) -> ProbeSchedule:
    """The traffic has changed: the next probe comes as soon as its price allows."""
    affordable_s = schedule.ended_s + shortest_interval_s(exploration, schedule.price_ratio)
    soonest_s = max(affordable_s, schedule.soonest_s)
    return replace(schedule, interval_s=0.0, next_s=min(schedule.next_s, soonest_s))


def start_probe(
    schedule: ProbeSchedule,
    exploration: Exploration,
    forecast: BucketForecast,
    survival: SurvivalEstimate,
    time_s: float,
) -> ProbeSchedule:
    """The schedule with a probe running, if one is due and would tell something new; else unchanged."""
    if schedule.running is not None or exploration.share_max_ratio <= 0 or time_s < schedule.next_s:
        return schedule
    wanted = _what_to_probe(forecast, survival)
    if wanted is None:
        return schedule
    price = _price(forecast, wanted)
    if time_s < schedule.ended_s + shortest_interval_s(exploration, price):
        return schedule
    present = forecast.present_num_speculative_tokens
    return replace(schedule, running=Probe(forecast.decode_batch_to, wanted, present, time_s, price))


def _what_to_probe(forecast: BucketForecast, survival: SurvivalEstimate) -> int | None:
    present = forecast.present_num_speculative_tokens
    values = [candidate.num_speculative_tokens for candidate in forecast.candidates]
    off = forecast.candidate(0)
    if present > 0 and off is not None and not off.is_cost_measured:
        return 0
    above = [value for value in values if value > present]
    if present == 0 and survival.watched_positions == 0 and above:
        # Nothing is drafted, so nothing is told: the least that tells something.
        return above[0]
    if above and survival.measured_positions < above[-1]:
        return next((value for value in above if value > 2 * present), above[-1])
    unknown = [c for c in forecast.candidates if c.step_s is None and c.num_speculative_tokens != present]
    if unknown and _could_pay(forecast):
        return unknown[-1].num_speculative_tokens
    return None


def _price(forecast: BucketForecast, num_speculative_tokens: int) -> float:
    """Share of the bucket's tokens per second that a setting is expected to lose against the present one.

    While that is not known, the present one may just as well be the one that loses.
    """
    present = forecast.candidate(forecast.present_num_speculative_tokens)
    wanted = forecast.candidate(num_speculative_tokens)
    if present is not None and wanted is not None and present.tokens_per_s and wanted.tokens_per_s:
        return max(1.0 - wanted.tokens_per_s / present.tokens_per_s, 0.0)
    return UNKNOWN_PRICE


def _could_pay(forecast: BucketForecast) -> bool:
    """Whether drafting would pay if it were free."""
    return max(candidate.tokens_per_request_step for candidate in forecast.candidates) > 1.01
