"""Bounded probes: a short excursion of the busy bucket to a setting whose cost or acceptance is unknown.

Share of time at most ``share_max_ratio``; the wait doubles while probes change nothing, and starts again when
the acceptance drifts. A probe that met no draft at all is not counted: it is repeated soon.
"""

from __future__ import annotations

from dataclasses import replace

from specctl.controller.state import Probe, ProbeSchedule
from specctl.policy.base import Exploration
from specctl.types import BucketForecast, Observation, SurvivalEstimate

__all__ = ["end_probe", "followed", "hastened", "is_over", "shortest_interval_s", "start_probe"]

# A probe on a server that stands still ends after this many times its length.
OVERTIME = 3.0
# Wait after a probe without a single draft, in lengths of a probe.
EMPTY_WAIT = 4.0


def followed(probe: Probe, observation: Observation) -> Probe:
    """The probe with the steps that its bucket took at its value since the last look."""
    wanted = (probe.bucket_to, probe.num_speculative_tokens, False)
    cells = [
        cell
        for cell in observation.cells or ()
        if (cell.decode_batch_to, cell.num_speculative_tokens, cell.has_prefill) == wanted
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


def shortest_interval_s(exploration: Exploration) -> float:
    return (
        exploration.probe_s / exploration.share_max_ratio if exploration.share_max_ratio > 0 else float("inf")
    )


def end_probe(
    schedule: ProbeSchedule, exploration: Exploration, time_s: float, *, has_paid: bool
) -> ProbeSchedule:
    if schedule.running is not None and schedule.running.is_empty and not has_paid:
        return replace(schedule, running=None, next_s=time_s + EMPTY_WAIT * exploration.probe_s)
    shortest_s = shortest_interval_s(exploration)
    doubled_s = min(max(2.0 * schedule.interval_s, shortest_s), max(exploration.interval_max_s, shortest_s))
    interval_s = shortest_s if has_paid else doubled_s
    return replace(schedule, running=None, next_s=time_s + interval_s, interval_s=interval_s, ended_s=time_s)


def hastened(schedule: ProbeSchedule, exploration: Exploration) -> ProbeSchedule:
    """The traffic has changed: the next probe comes as soon as the share of time allows."""
    soonest_s = schedule.ended_s + shortest_interval_s(exploration)
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
    probe = Probe(forecast.decode_batch_to, wanted, forecast.present_num_speculative_tokens, time_s)
    return replace(schedule, running=probe)


def _what_to_probe(forecast: BucketForecast, survival: SurvivalEstimate) -> int | None:
    present = forecast.present_num_speculative_tokens
    values = [candidate.num_speculative_tokens for candidate in forecast.candidates]
    highest = values[-1]
    off = forecast.candidate(0)
    if present > 0 and off is not None and not off.is_cost_measured:
        return 0
    if min(survival.measured_positions, survival.watched_positions) < highest and present < highest:
        return highest
    unknown = [c for c in forecast.candidates if c.step_s is None and c.num_speculative_tokens != present]
    if unknown and _could_pay(forecast):
        return unknown[-1].num_speculative_tokens
    return None


def _could_pay(forecast: BucketForecast) -> bool:
    """Whether drafting would pay if it were free."""
    return max(candidate.tokens_per_request_step for candidate in forecast.candidates) > 1.01
