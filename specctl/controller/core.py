"""The decision: ``step(observation, state, policy) -> (decision, state)``. No I/O, no clock, no metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable, TableRow
from specctl.controller.explain import explain
from specctl.controller.forecast import active_batches, batch_sums, bucket_bounds, forecast_buckets
from specctl.controller.least_chances import mean_wishes, row_settings, with_least_chances
from specctl.controller.probe import end_probe, followed, hastened, is_near, is_over, start_probe
from specctl.controller.recommend import recommend
from specctl.controller.rest import NO_REST
from specctl.controller.state import ControllerState, Probe
from specctl.policy.base import Policy
from specctl.types import (
    BucketChoice,
    BucketForecast,
    Decision,
    Observation,
    Reason,
    SurvivalEstimate,
    TtftEstimate,
)

__all__ = ["merged_rows", "step"]

MINUTE_S = 60.0


def step(
    observation: Observation, state: ControllerState, policy: Policy
) -> tuple[Decision, ControllerState]:
    """One tick. The same observations, state and policy give the same decisions."""
    state = replace(
        state,
        survival=state.survival.updated(observation),
        cost=state.cost.updated(observation),
        ttft=state.ttft.updated(observation),
    )
    capabilities, applied = observation.capabilities, observation.applied
    if capabilities is None:
        return recommend(observation, state, policy), state
    if applied is None:
        return _nothing(observation, Reason.NOT_MEASURED, "the table in force could not be read"), state
    if not capabilities.controllable:
        why = capabilities.why_not_controllable or "the server refuses tables"
        return _nothing(observation, Reason.NOT_CONTROLLABLE, why), state
    return _decide(observation, state, policy, capabilities, applied)


def _decide(
    observation: Observation,
    state: ControllerState,
    policy: Policy,
    capabilities: Capabilities,
    applied: AppliedTable,
) -> tuple[Decision, ControllerState]:
    time_s = observation.time_s
    bounds = bucket_bounds(capabilities)
    settings = row_settings(applied.rows, bounds)
    present = {upper: value for upper, (value, _) in settings.items()}
    candidates = policy.candidates(capabilities.num_speculative_tokens_legal)
    survival = _survival(state, candidates, present)
    if survival.drifted:
        # What held the last settings in place no longer holds.
        state = replace(state, changed_s={})
    if policy.is_learned:
        candidates = _within_reach(candidates, survival, present)
    sums = batch_sums(state.batch_sums, observation)
    batches = active_batches(sums, observation)
    probe = state.schedule.running
    base = _without_probe(present, probe)
    rest = NO_REST if survival.drifted else state.rest
    standing = rest.standing(policy, candidates, base, batches, time_s)
    due = [b for b in bounds if b[1] not in standing]
    forecasts = _with_ttft(
        forecast_buckets(due, batches, base, candidates, survival, state.cost), state.ttft.estimate()
    )
    recent = tuple(t for t in state.change_times_s if time_s - t < MINUTE_S)
    made = _weighed(forecasts, policy, state.changed_s, len(recent), time_s)
    choices = _capped([made[b[1]] if b[1] in made else standing[b[1]] for b in bounds])
    state = replace(state, batch_sums=sums, rest=rest.after(policy, candidates, choices, standing, time_s))
    # What nobody may apply must not start a dwell time.
    changed = [choice for choice in choices if choice.is_change and observation.may_act]
    state = _remember(state, changed, recent, time_s)
    choices, state = _explore(choices, forecasts, observation, state, policy, survival)
    told = _against(present, choices, probe)
    wishes = mean_wishes(state.wishes, told, forecasts, policy, observation.interval_s)
    told = with_least_chances(told, wishes, settings, capabilities.min_token_prob, policy)
    return _decision(observation, told, survival, batches, forecasts), replace(state, wishes=wishes)


def _with_ttft(forecasts: list[BucketForecast], ttft: TtftEstimate | None) -> list[BucketForecast]:
    if ttft is None:
        return forecasts
    return [one._replace(ttft=ttft) if one.is_active else one for one in forecasts]


def _without_probe(present: Mapping[int, int], probe: Probe | None) -> dict[int, int]:
    """The values in force, with what the probe goes back to in its place."""
    base = dict(present)
    if probe is not None and probe.bucket_to in base:
        base[probe.bucket_to] = probe.resume_num_speculative_tokens
    return base


def _weighed(
    forecasts: list[BucketForecast],
    policy: Policy,
    changed_s: Mapping[int, float],
    changes_of_minute: int,
    time_s: float,
) -> dict[int, BucketChoice]:
    """By bucket's upper end."""
    made = {}
    changes_left = policy.guard_rails.changes_max_per_minute - changes_of_minute
    for forecast in forecasts:
        upper = forecast.decode_batch_to
        since_s = time_s - changed_s.get(upper, float("-inf"))
        made[upper] = policy.decide(forecast, since_change_s=since_s, changes_left=changes_left)
    return made


def _survival(
    state: ControllerState, candidates: tuple[int, ...], present: dict[int, int]
) -> SurvivalEstimate:
    positions = max(*candidates, *present.values(), 0)
    estimate = state.survival.estimate(positions)
    if estimate is not None:
        return estimate
    nothing = (0.0,) * positions
    return SurvivalEstimate(nothing, (1.0,) * positions, nothing, nothing, 0)


def _within_reach(
    candidates: tuple[int, ...], survival: SurvivalEstimate, present: dict[int, int]
) -> tuple[int, ...]:
    """Without values far above the positions with trials: a step up may not rest on guesses alone."""
    if not survival.trials:
        return candidates
    reach = max(2 * survival.measured_positions + 1, *present.values())
    return tuple(value for value in candidates if value <= reach)


def _capped(choices: list[BucketChoice]) -> list[BucketChoice]:
    """A bucket without steps of its own drafts no more than the nearest smaller measured one.

    Drafting pays less the fuller the batch, so more would be a leap of the extrapolation.
    """
    result: list[BucketChoice] = []
    cap: int | None = None
    for choice in choices:
        if not choice.is_extrapolated:
            cap = choice.num_speculative_tokens
        elif cap is not None and choice.is_change and choice.num_speculative_tokens > cap:
            value = max(cap, 0)
            choice = choice._replace(num_speculative_tokens=value, predicted_tokens_per_s=None)
        result.append(choice)
    return result


def _remember(
    state: ControllerState, changed: list[BucketChoice], recent: tuple[float, ...], time_s: float
) -> ControllerState:
    if not changed:
        return state if recent == state.change_times_s else replace(state, change_times_s=recent)
    changed_s = {**state.changed_s, **{choice.decode_batch_to: time_s for choice in changed}}
    return replace(state, changed_s=changed_s, change_times_s=(*recent, time_s))


def _explore(
    choices: list[BucketChoice],
    forecasts: list[BucketForecast],
    observation: Observation,
    state: ControllerState,
    policy: Policy,
    survival: SurvivalEstimate,
) -> tuple[list[BucketChoice], ControllerState]:
    """Start, keep or end a probe in the busiest bucket; while it runs it overrides the bucket's choice."""
    schedule, time_s = state.schedule, observation.time_s
    if not policy.is_learned or not observation.may_act:
        return choices, replace(state, schedule=replace(schedule, running=None))
    busy = _busiest(observation, forecasts)
    if busy is not None:
        is_other = busy.decode_batch_to != schedule.bucket_to
        if is_other or (survival.drifted and is_near(busy, survival)):
            schedule = replace(hastened(schedule, policy.exploration), bucket_to=busy.decode_batch_to)
    running = schedule.running
    if running is not None:
        running = followed(running, observation)
        schedule = replace(schedule, running=running)
        choice = next((c for c in choices if c.decode_batch_to == running.bucket_to), None)
        if choice is None or choice.is_change or is_over(running, policy.exploration, time_s):
            has_paid = choice is not None and choice.is_change
            schedule = end_probe(schedule, policy.exploration, time_s, has_paid=has_paid)
    else:
        settled = {c.decode_batch_to for c in choices if not c.is_change}
        if busy is not None and busy.decode_batch_to in settled:
            schedule = start_probe(schedule, policy.exploration, busy, survival, time_s)
    if schedule is not state.schedule:
        state = replace(state, schedule=schedule)
    probe = schedule.running
    if probe is None:
        return choices, state
    return [_as_probe(c, probe) if c.decode_batch_to == probe.bucket_to else c for c in choices], state


def _busiest(observation: Observation, forecasts: list[BucketForecast]) -> BucketForecast | None:
    seconds: dict[int, float] = {}
    for cell in observation.cells or ():
        seconds[cell.decode_batch_to] = seconds.get(cell.decode_batch_to, 0.0) + cell.step_s
    active = [forecast for forecast in forecasts if forecast.decode_batch_to in seconds]
    return max(active, key=lambda forecast: seconds[forecast.decode_batch_to], default=None)


def _as_probe(choice: BucketChoice, probe: Probe) -> BucketChoice:
    return choice._replace(
        num_speculative_tokens=probe.num_speculative_tokens,
        reason=Reason.PROBE,
        predicted_tokens_per_s=None,
        detail="",
    )


def _against(
    present: dict[int, int], choices: list[BucketChoice], probe: Probe | None
) -> tuple[BucketChoice, ...]:
    """``from`` is what the engine has now; during a probe the choice was weighed against another value."""
    result = []
    for choice in choices:
        now = present[choice.decode_batch_to]
        if now != choice.from_num_speculative_tokens:
            was_kept = not choice.is_change and choice.reason is not Reason.PROBE
            reason = Reason.PROBE_END if was_kept and probe is not None else choice.reason
            choice = choice._replace(
                from_num_speculative_tokens=now, reason=reason, present_tokens_per_s=None
            )
        result.append(choice)
    return tuple(result)


def _decision(
    observation: Observation,
    choices: tuple[BucketChoice, ...],
    survival: SurvivalEstimate,
    batches: dict[int, float],
    forecasts: list[BucketForecast],
) -> Decision:
    active = [choice for choice in choices if choice.is_active]
    changed = [choice for choice in choices if choice.is_change]
    busiest = max(active, key=lambda c: (c.is_change, batches.get(c.decode_batch_to, 0.0)), default=None)
    lead = busiest if not changed or (busiest is not None and busiest.is_change) else changed[0]
    known = survival if survival.trials > 0 else None
    return Decision(
        target=observation.target,
        time_s=observation.time_s,
        rows=merged_rows(choices),
        reason=Reason.IDLE if lead is None else lead.reason,
        explanation=explain(choices, known),
        choices=choices,
        survival=known,
        predicted_tokens_per_s=None if lead is None else lead.predicted_tokens_per_s,
        present_tokens_per_s=None if lead is None else lead.present_tokens_per_s,
        off_tokens_per_s=None if lead is None else lead.off_tokens_per_s,
        forecasts=tuple(forecast for forecast in forecasts if forecast.is_active),
    )


def _nothing(observation: Observation, reason: Reason, explanation: str) -> Decision:
    return Decision(observation.target, observation.time_s, None, reason, explanation)


def merged_rows(choices: tuple[BucketChoice, ...]) -> tuple[TableRow, ...]:
    """Neighbouring buckets with one setting become one row; the last row has no upper end."""
    return _rows(
        tuple([(one.decode_batch_from, one.num_speculative_tokens, one.min_token_prob) for one in choices])
    )


# A table mostly stays as it is, and many servers have the same one.
@lru_cache(maxsize=1024)
def _rows(settings: tuple[tuple[int, int, float | None], ...]) -> tuple[TableRow, ...]:
    """From (first batch, num_speculative_tokens, min_token_prob) of every bucket."""
    starts = [
        one
        for before, one in zip((None, *settings), settings, strict=False)
        if before is None or before[1:] != one[1:]
    ]
    ends = [*(first - 1 for first, *_ in starts[1:]), None]
    return tuple(
        TableRow(
            decode_batch_from=first, decode_batch_to=end, num_speculative_tokens=value, min_token_prob=prob
        )
        for (first, value, prob), end in zip(starts, ends, strict=False)
    )
