"""One target's decision: estimates, constraints, one choice for every bucket, a plan. No I/O, no clock.

An observation passes each part once: estimators, forecast, constraints, choices, samples, thresholds, rows.
What a plan changes is remembered only once the engine has accepted it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import ClassLimit
from specctl.contract.table import AppliedTable, TableRow
from specctl.core.acceptance import Acceptance
from specctl.core.explain import explain, limits_changes
from specctl.core.forecast import Forecast, forecast
from specctl.core.front_end import FrontEnd
from specctl.core.latency import MeanLatency
from specctl.core.messages import Choice, Event, Plan, Reason
from specctl.core.objective import Objective
from specctl.core.plan import Decider, choices_of, planned_rows
from specctl.core.rails import (
    NOTHING_HELD,
    Constraint,
    Held,
    Rails,
    held_constraints,
)
from specctl.core.recommend import recommend
from specctl.core.sampling import choose_sample
from specctl.core.settings import PolicySettings
from specctl.core.space import Bools, Space
from specctl.core.step_cost import StepCost
from specctl.core.supervision import stepped_back, supervised, two_settings
from specctl.core.thresholds import Thresholds, break_even_prob
from specctl.types import Observation

__all__ = ["Controller"]


class Controller:
    """Estimates and memory of one server, from one start of its engine on."""

    def __init__(self) -> None:
        self.space: Space | None = None
        """None before the first poll of a server with the plugin."""
        self._limits_of_others: tuple[ClassLimit, ...] = ()
        self._limits_put: tuple[ClassLimit, ...] = ()

    def learn(self, observation: Observation) -> Event | None:
        """Take in a poll, once; what there is to say of it."""
        if observation.capabilities is None:
            return None
        if self.space is None:
            self._begin(observation.capabilities)
        if observation.applied is not None:
            self._meet_limits(observation.applied.class_limits)
        self._learn(observation)
        return self._front_end.update(observation)

    def class_limits(self, policy: PolicySettings) -> tuple[ClassLimit, ...]:
        """The policy's rules for classes; where it does not speak of them, those that others have put."""
        return self._limits_of_others if policy.classes is None else policy.classes

    def plan(self, observation: Observation, policy: PolicySettings, held: Held = NOTHING_HELD) -> Plan:
        """What should be in force after this poll; asking changes nothing."""
        capabilities, applied = observation.capabilities, observation.applied
        if capabilities is None:
            return recommend(observation)
        if not capabilities.controllable:
            why = capabilities.why_not_controllable or "the server refuses tables"
            return _nothing(observation, Reason.NOT_CONTROLLABLE, why)
        if applied is None:
            return _nothing(observation, Reason.NOT_MEASURED, "the table in force could not be read")
        return self._plan(observation, capabilities, applied, policy, held)

    def accepted(self, plan: Plan) -> None:
        """The engine has put the plan's table in force."""
        buckets = [i for i, choice in enumerate(plan.choices) if choice.is_change]
        self._rails.accepted(buckets, plan.time_s)
        self._limits_put = plan.class_limits

    def _begin(self, capabilities: Capabilities) -> None:
        self.space = space = Space.of(capabilities)
        self._acceptance = Acceptance(space)
        self._cost = StepCost(space)
        self._front_end = FrontEnd(space)
        self._rails = Rails(space)
        self._latency = MeanLatency()
        self._thresholds = Thresholds(len(space.buckets))

    def _meet_limits(self, in_force: tuple[ClassLimit, ...]) -> None:
        if in_force != self._limits_put:
            self._limits_of_others = self._limits_put = in_force

    def _learn(self, observation: Observation) -> None:
        cells, interval_s = observation.cells, observation.interval_s
        self._latency.update(observation)
        if cells is None or interval_s is None:
            return
        self._acceptance.update(cells, observation.shadow, interval_s, observation.groups)
        self._cost.update(cells, interval_s)
        self._thresholds.pass_time(interval_s)

    def _plan(
        self,
        observation: Observation,
        capabilities: Capabilities,
        applied: AppliedTable,
        policy: PolicySettings,
        held: Held,
    ) -> Plan:
        space = self.space
        assert space is not None
        eligible, lacks = policy.eligible(space)
        expected = self._forecast(observation, space, applied, policy, eligible)
        buckets, objective = range(len(space.buckets)), policy.objective
        if policy.frozen:
            words = "nothing is changed, the table in force is held"
            return self._as_it_is(observation, policy, expected, applied, Reason.FROZEN, words)
        if not eligible.any():
            return self._as_it_is(observation, policy, expected, applied, Reason.NOT_POSSIBLE, lacks)
        constraints = self._constraints(observation, policy, held, expected)
        engine = supervised(observation) if policy.supervises else None
        may = eligible
        if engine is not None:
            constraints.append(two_settings(engine, space, eligible))
            may = eligible & constraints[-1].allowed[0]
        if objective is None:
            picked = [self._by_hand(policy, expected, eligible, constraints, bucket) for bucket in buckets]
        else:
            used = objective.used_ratio(
                expected.cost, expected.acceptance, self._latency.reading(objective.bounds)
            )
            decider = Decider(expected, policy.guard_rails, eligible, used, constraints)
            picked = [decider.choose(bucket) for bucket in buckets]
        choices = choices_of(expected, picked, applied.rows)
        choices = self._sampled(choices, picked, expected, policy, capabilities, may)
        if engine is not None:
            choices = tuple(stepped_back(choice, engine) for choice in choices)
        elif policy.weighs_tokens and capabilities.min_token_prob is not None:
            wanted = [break_even_prob(expected, b, after) for b, (after, _, _) in enumerate(picked)]
            choices = self._thresholds.applied(choices, wanted, capabilities.min_token_prob, held.ceilings)
        choices = _put_back(choices, held, space)
        rows, changes = planned_rows(choices, applied.rows)
        asked = self.class_limits(policy) if held.class_limits is None else held.class_limits
        limits, events = _class_limits(observation.target, capabilities, asked)
        changes = (*changes, *limits_changes(applied.class_limits, limits))
        return self._finished(observation, policy, choices, expected, rows, limits, changes, events)

    def _as_it_is(
        self,
        observation: Observation,
        policy: PolicySettings,
        expected: Forecast,
        applied: AppliedTable,
        reason: Reason,
        words: str,
    ) -> Plan:
        """The table in force, so that its lease can be renewed."""
        picked = [(present, reason, words) for present in expected.present.tolist()]
        choices = choices_of(expected, picked, applied.rows)
        plan = self._finished(observation, policy, choices, expected, applied.rows, applied.class_limits)
        explanation = words if plan.lead is None else plan.explanation
        return replace(plan, reason=reason, explanation=explanation, is_held=True)

    def _forecast(
        self,
        observation: Observation,
        space: Space,
        applied: AppliedTable,
        policy: PolicySettings,
        eligible: Bools,
    ) -> Forecast:
        acceptance = self._acceptance.estimate()
        cost = self._front_end.paced(self._cost.estimate(acceptance.drafted, acceptance.emitted))
        present, is_active = space.in_force(applied.rows), _active(observation, space)
        objective = policy.objective or Objective()
        return forecast(space, present, is_active, acceptance, cost, objective, eligible)

    def _constraints(
        self, observation: Observation, policy: PolicySettings, held: Held, expected: Forecast
    ) -> list[Constraint]:
        # What was worse on trial is taken back at once.
        may_wait = np.array([last not in held.settings for _, last in expected.space.buckets])
        dwell_s, has_drifted = policy.guard_rails.dwell_s, expected.acceptance.has_drifted
        dwell = self._rails.dwell(dwell_s, expected.present, may_wait, has_drifted, observation.time_s)
        return [*held_constraints(held, expected.space), dwell]

    def _by_hand(
        self,
        policy: PolicySettings,
        expected: Forecast,
        eligible: Bools,
        constraints: list[Constraint],
        bucket: int,
    ) -> tuple[int, Reason, str]:
        wanted, words = policy.wanted(expected.space.buckets[bucket][0], expected.space)
        present = int(expected.present[bucket])
        if not eligible[wanted]:
            return present, Reason.NOT_POSSIBLE, words
        binding = [one for one in constraints if one.reason is not Reason.DWELL]
        for constraint in binding:
            if not constraint.allowed[bucket, wanted]:
                allowed = np.logical_and.reduce([one.allowed[bucket] for one in binding])
                is_kept = allowed[present] or not allowed.any()
                most = present if is_kept else int(allowed.nonzero()[0][-1])
                return most, constraint.reason, constraint.words
        return wanted, Reason.SET_BY_POLICY, words

    def _sampled(
        self,
        choices: tuple[Choice, ...],
        picked: list[tuple[int, Reason, str]],
        expected: Forecast,
        policy: PolicySettings,
        capabilities: Capabilities,
        eligible: Bools,
    ) -> tuple[Choice, ...]:
        least = capabilities.sample_every_min_steps
        if policy.objective is None or least is None:
            return tuple(choice._replace(sample=None) for choice in choices)
        may = eligible.copy()
        may[0] = expected.space.is_off_prepared
        numbers = may.nonzero()[0].tolist()
        return tuple(
            choice._replace(
                sample=choose_sample(
                    expected, bucket, picked[bucket][0], numbers, policy.sampling, least, choice.sample
                )
            )
            for bucket, choice in enumerate(choices)
        )

    @staticmethod
    def _finished(
        observation: Observation,
        policy: PolicySettings,
        choices: tuple[Choice, ...],
        expected: Forecast,
        rows: tuple[TableRow, ...],
        limits: tuple[ClassLimit, ...],
        changes: tuple[str, ...] = (),
        events: tuple[Event, ...] = (),
    ) -> Plan:
        survival = expected.acceptance.survival if expected.acceptance.trials > 0 else None
        lead = _lead(choices, expected)
        # What changes is the reason, also where it is a bucket without traffic.
        changed = None if lead is None or lead.is_change else _first_changed(choices)
        told = changed or lead
        return Plan(
            target=observation.target,
            time_s=observation.time_s,
            reason=Reason.IDLE if told is None else told.reason,
            explanation=explain(choices, survival),
            rows=rows,
            class_limits=limits,
            choices=choices,
            changes=changes,
            events=events,
            forecast=expected,
            lead=lead,
            has_prices=policy.objective is not None and policy.objective.prices is not None,
        )


def _put_back(choices: tuple[Choice, ...], held: Held, space: Space) -> tuple[Choice, ...]:
    """Where one setting is held it is the whole of it, with its probability."""
    found = []
    for choice in choices:
        setting, reason, words = held.settings.get(choice.last, (None, choice.reason, ""))
        if setting is not None and space.number_of(setting) is not None:
            choice = choice._replace(after=setting, reason=reason, detail=words)
        found.append(choice)
    return tuple(found)


def _active(observation: Observation, space: Space) -> Bools:
    active = np.zeros(len(space.buckets), np.bool_)
    for cell in observation.cells or ():
        bucket = space.bucket_index.get(cell.decode_batch_to)
        if bucket is not None and cell.request_steps:
            active[bucket] = True
    return active


def _lead(choices: tuple[Choice, ...], expected: Forecast) -> Choice | None:
    """The busiest bucket that changes, else the busiest one, else any that changes."""
    busy = [
        (choice.is_change, float(expected.cost.batch[bucket]), bucket)
        for bucket, choice in enumerate(choices)
        if choice.is_active
    ]
    if busy:
        return choices[max(busy)[2]]
    return _first_changed(choices)


def _first_changed(choices: tuple[Choice, ...]) -> Choice | None:
    return next((choice for choice in choices if choice.is_change), None)


def _nothing(observation: Observation, reason: Reason, explanation: str) -> Plan:
    return Plan(observation.target, observation.time_s, reason, explanation)


def _class_limits(
    target: str, capabilities: Capabilities, wanted: tuple[ClassLimit, ...]
) -> tuple[tuple[ClassLimit, ...], tuple[Event, ...]]:
    """All rules, or none where the engine does not take as many: fewer is another policy."""
    most = capabilities.class_limits_max
    if len(wanted) <= most:
        return wanted, ()
    why = f"the server takes {most} rules for classes, the policy has {len(wanted)}: they are left out"
    return (), (Event("refused", target, why, {"kind": "class_limits", "error": why}, is_warning=True),)
