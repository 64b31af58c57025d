"""A group changes one server at a time: more drafts go to a canary first. No I/O, no clock.

Fewer drafts are the safe direction and go everywhere at once. More drafts in a bucket wait until one server,
the canary, has carried them with traffic and was not worse than before; then they are approved for the whole
group for a while. When it was worse, it goes back by itself, and the same change waits. Probes are short and
bounded by the policy, and are not held.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from specctl.controller.canary import Canary, RolloutSettings, Samples, Verdict
from specctl.controller.core import merged_rows
from specctl.controller.explain import explain
from specctl.controller.state import ControllerState
from specctl.types import BucketChoice, Decision, Observation, Reason

__all__ = ["Admission", "RolloutEvent", "RolloutGroup", "unremembered"]

APPROVAL_S = 600.0
SAMPLE_AGE_S = 60.0
BAR_PAUSES = 10.0
LOST_S = 30.0
"""A canary that was not heard of for this long has failed."""


@dataclass(frozen=True, slots=True)
class RolloutEvent:
    """For log and audit: ``canary``, ``canary_passed``, ``canary_ended`` or ``rollback`` of ``target``."""

    event: str
    target: str
    words: str
    record: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Admission:
    """What a server may do now. ``held``: buckets whose wanted raise was not let through."""

    decision: Decision
    held: frozenset[int] = frozenset()
    events: tuple[RolloutEvent, ...] = ()


@dataclass(slots=True)
class _Member:
    """``settled``: the value granted, by bucket. ``borrowed``: buckets where more may be in force for now, by
    a probe, or as a rollback did not reach the server. ``barred_until_s``: no canary until then."""

    boot_id: str | None = None
    seen_s: float = float("-inf")
    barred_until_s: float = float("-inf")
    settled: dict[int, int] = field(default_factory=dict)
    borrowed: set[int] = field(default_factory=set)
    samples: dict[int, Samples] = field(default_factory=dict)


class RolloutGroup:
    """Servers that change one after another. One that is alone is let through."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._canary: Canary | None = None
        # By bucket's upper end: (num_speculative_tokens, when it was last in use, or until when it waits).
        self._approved: dict[int, tuple[int, float]] = {}
        self._paused: dict[int, tuple[int, float]] = {}

    @property
    def canary(self) -> str | None:
        return None if self._canary is None else self._canary.target

    def join(self, target: str) -> None:
        self._members.setdefault(target, _Member())

    def leave(self, target: str) -> None:
        self._members.pop(target, None)
        self.withdraw(target)

    def withdraw(self, target: str) -> None:
        """End the target's trial, if it has one, without a verdict: it keeps its table."""
        if self._canary is not None and self._canary.target == target:
            self._canary = None

    def admit(self, observation: Observation, decision: Decision, settings: RolloutSettings) -> Admission:
        """What of ``decision`` may be applied to its server now."""
        if decision.rows is None or not observation.may_act:
            return Admission(decision)
        member = self._members.setdefault(decision.target, _Member())
        events: list[RolloutEvent] = []
        self._meet(member, observation, decision, settings, events)
        self._watch(member, observation)
        rolled_back = self._judge(decision.target, decision.time_s, settings, events)
        trial = self._canary
        is_alone = len(self._members) < 2 or settings.canary_s == 0
        choices: list[BucketChoice] = []
        held: set[int] = set()
        raised: dict[int, int] = {}
        for choice in decision.choices:
            bucket = choice.decode_batch_to
            if choice.reason is Reason.PROBE:
                choice = self._probing(member, choice, rolled_back, held)
            elif choice.num_speculative_tokens != member.settled[bucket] or bucket in self._approved:
                is_raise = self._is_raise(member, choice, decision.time_s)
                why = self._why_not(member, choice, decision, is_alone=is_alone) if is_raise else None
                if why is not None:
                    held.add(bucket)
                    reason = Reason.ROLLBACK if bucket in rolled_back else Reason.CANARY_WAIT
                    choice = _kept(choice, member.settled[bucket], reason, why)
                elif is_raise and not is_alone:
                    raised[bucket] = choice.num_speculative_tokens
                else:
                    self._settle(member, choice, decision)
            choices.append(choice)
        if trial is not None and self._canary is None:
            words = "canary ended: it wants fewer drafts by itself"
            events.append(RolloutEvent("canary_ended", trial.target, words, trial.record()))
        if raised:
            self._start(member, decision, raised, events)
        if held:
            decision = _rebuilt(decision, tuple(choices))
        return Admission(decision, frozenset(held), tuple(events))

    def _meet(
        self,
        member: _Member,
        observation: Observation,
        decision: Decision,
        settings: RolloutSettings,
        events: list[RolloutEvent],
    ) -> None:
        """Bring what is known of the server up to the table in force."""
        time_s, canary = decision.time_s, self._canary
        if member.boot_id != observation.boot_id:
            if canary is not None and canary.target == decision.target:
                self._fail("the engine restarted", time_s, settings, events)
            _reset(member, observation.boot_id)
        elif canary is not None:
            seen_s = max(self._members[canary.target].seen_s, canary.started_s)
            if canary.target != decision.target and time_s - seen_s > LOST_S:
                lost = self._members[canary.target]
                self._fail("it cannot be changed or does not answer", time_s, settings, events)
                lost.barred_until_s = time_s + BAR_PAUSES * settings.pause_s
        member.seen_s = time_s
        for choice in decision.choices:
            bucket, present = choice.decode_batch_to, choice.from_num_speculative_tokens
            settled = member.settled.setdefault(bucket, present)
            if present <= settled:
                member.borrowed.discard(bucket)
            elif bucket not in member.borrowed:
                # Somebody else raised it: that is the table to start from.
                member.settled[bucket] = present

    def _watch(self, member: _Member, observation: Observation) -> None:
        time_s, canary = observation.time_s, self._canary
        is_canary = canary is not None and canary.target == observation.target
        for cell in observation.cells or ():
            bucket = cell.decode_batch_to
            if cell.has_prefill:
                continue
            if canary is not None and is_canary:
                canary.add(time_s, cell)
            if member.settled.get(bucket) == cell.num_speculative_tokens:
                samples = member.samples.setdefault(bucket, Samples())
                samples.forget_before(time_s - SAMPLE_AGE_S)
                samples.add(time_s, cell)

    def _judge(
        self, target: str, time_s: float, settings: RolloutSettings, events: list[RolloutEvent]
    ) -> frozenset[int]:
        """The verdict on this server's own trial. Returns the buckets that go back."""
        canary = self._canary
        if canary is None or canary.target != target:
            return frozenset()
        verdict = canary.verdict(time_s, settings)
        if verdict is Verdict.WORSE:
            slowest = min(canary.judged, key=canary.left_ratio)
            words = f"{canary.left_ratio(slowest):.0%} of the tokens per second of a request before it"
            self._fail(words, time_s, settings, events)
            return frozenset(canary.to)
        if verdict is Verdict.PASSED:
            for bucket in canary.judged:
                self._approved[bucket] = canary.to[bucket], time_s
                self._paused.pop(bucket, None)
            words = f"canary passed for up to {max(canary.judged)} decoding; the others follow"
            events.append(RolloutEvent("canary_passed", target, words, canary.record()))
        elif verdict is Verdict.NOT_MEASURED:
            words = "canary ended: too little traffic for a verdict, so it goes back"
            self._take_back(canary)
            self._members[target].barred_until_s = time_s + settings.pause_s
            events.append(RolloutEvent("canary_ended", target, words, canary.record()))
        if verdict is not Verdict.RUNNING:
            self._canary = None
        return frozenset(canary.to) if verdict is Verdict.NOT_MEASURED else frozenset()

    def _fail(self, why: str, time_s: float, settings: RolloutSettings, events: list[RolloutEvent]) -> None:
        canary = self._canary
        assert canary is not None
        self._canary = None
        for bucket, value in canary.to.items():
            self._paused[bucket] = value, time_s + settings.pause_s
            self._approved.pop(bucket, None)
        self._take_back(canary)
        words = f"canary rolled back: {why}; not again for {settings.pause_s:g} s"
        events.append(RolloutEvent("rollback", canary.target, words, {**canary.record(), "why": why}))

    def _take_back(self, canary: Canary) -> None:
        member = self._members[canary.target]
        member.settled.update(canary.before)
        member.borrowed.update(canary.to)
        for bucket in canary.to:
            member.samples.pop(bucket, None)

    def _probing(
        self, member: _Member, choice: BucketChoice, rolled_back: frozenset[int], held: set[int]
    ) -> BucketChoice:
        """A probe is let through, but never in the place of a rollback."""
        bucket = choice.decode_batch_to
        if bucket not in rolled_back:
            member.borrowed.add(bucket)
            return choice
        held.add(bucket)
        return _kept(choice, member.settled[bucket], Reason.ROLLBACK, "a probe waits")

    def _is_raise(self, member: _Member, choice: BucketChoice, time_s: float) -> bool:
        """More drafts than this server was granted, and than the group has tried."""
        bucket, wanted = choice.decode_batch_to, choice.num_speculative_tokens
        return wanted > member.settled[bucket] and not self._is_approved(bucket, wanted, time_s)

    def _why_not(
        self, member: _Member, choice: BucketChoice, decision: Decision, *, is_alone: bool
    ) -> str | None:
        """Why a raise may not be applied here now; None: it may."""
        bucket, wanted, time_s = choice.decode_batch_to, choice.num_speculative_tokens, decision.time_s
        paused, until_s = self._paused.get(bucket, (0, 0.0))
        if paused and wanted >= paused and time_s < until_s:
            return f"{paused} tokens failed on a canary; not again for {until_s - time_s:.0f} s"
        if is_alone:
            return None
        if self._canary is not None:
            is_own = self._canary.target == decision.target
            return "one change at a time" if is_own else f"{self._canary.target} goes first"
        if time_s < member.barred_until_s:
            return "another server goes first, as the last trial here had no verdict"
        samples = member.samples.get(bucket)
        if not choice.is_active or samples is None or not samples.is_enough:
            return "too little traffic to judge it by"
        return None

    def _is_approved(self, bucket: int, value: int, time_s: float) -> bool:
        """Carried by a canary at this decode batch or a fuller one, where drafting pays less."""
        return any(
            at >= bucket and approved >= value and time_s - used_s < APPROVAL_S
            for at, (approved, used_s) in self._approved.items()
        )

    def _settle(self, member: _Member, choice: BucketChoice, decision: Decision) -> None:
        bucket, value = choice.decode_batch_to, choice.num_speculative_tokens
        approved, _ = self._approved.get(bucket, (None, 0.0))
        if approved == value:
            self._approved[bucket] = value, decision.time_s
        before = member.settled[bucket]
        if value == before:
            return
        canary = self._canary
        if value < before and canary is not None and canary.target == decision.target and bucket in canary.to:
            self._canary = None
        member.settled[bucket] = value
        member.samples.pop(bucket, None)

    def _start(
        self, member: _Member, decision: Decision, raised: dict[int, int], events: list[RolloutEvent]
    ) -> None:
        before = {bucket: member.settled[bucket] for bucket in raised}
        baseline = {bucket: member.samples.pop(bucket) for bucket in raised}
        self._canary = Canary(decision.target, decision.time_s, before, raised, baseline)
        member.settled.update(raised)
        words = "canary: " + ", ".join(
            f"up to {bucket} decoding {before[bucket]} -> {value} tokens" for bucket, value in raised.items()
        )
        events.append(RolloutEvent("canary", decision.target, words, self._canary.record()))


def unremembered(
    state: ControllerState, before: ControllerState, decision: Decision, held: frozenset[int]
) -> ControllerState:
    """``state`` as if the held changes had not been wanted: they start no dwell time and use up no change."""
    if not held:
        return state
    changed_s = {bucket: at for bucket, at in state.changed_s.items() if bucket not in held}
    changed_s |= {bucket: at for bucket, at in before.changed_s.items() if bucket in held}
    times_s = state.change_times_s
    if not any(choice.decode_batch_to not in held for choice in decision.changed):
        times_s = tuple(time_s for time_s in times_s if time_s != decision.time_s)
    return replace(state, changed_s=changed_s, change_times_s=times_s)


def _reset(member: _Member, boot_id: str | None) -> None:
    """A restarted engine starts from a table of its own."""
    member.boot_id = boot_id
    member.settled, member.borrowed, member.samples = {}, set(), {}


def _kept(choice: BucketChoice, value: int, reason: Reason, why: str) -> BucketChoice:
    return choice._replace(
        num_speculative_tokens=value, reason=reason, predicted_tokens_per_s=None, detail=why
    )


def _rebuilt(decision: Decision, choices: tuple[BucketChoice, ...]) -> Decision:
    """The same look with other choices."""
    lead = max(choices, key=lambda c: (c.is_change, c.reason is Reason.CANARY_WAIT, c.is_active))
    return replace(
        decision,
        rows=merged_rows(choices),
        reason=lead.reason,
        explanation=explain(choices, decision.survival),
        choices=choices,
        predicted_tokens_per_s=lead.predicted_tokens_per_s,
        present_tokens_per_s=lead.present_tokens_per_s,
        off_tokens_per_s=lead.off_tokens_per_s,
    )
