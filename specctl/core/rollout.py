"""A group changes one server at a time: more speculation goes to a canary first. No I/O, no clock.

Less speculation is the safe direction and goes everywhere at once. More of it in a bucket waits until one
server, the canary, has carried it with traffic and was not worse than before; then it is approved for the
whole group for a while. When it was worse, it goes back by itself, and the same change waits. What may not be
done now is a constraint that a server's plan is made under; nothing is undone after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specctl.contract.classes import ClassLimit
from specctl.contract.setting import Setting
from specctl.contract.telemetry import TelemetryCell
from specctl.core.canary import EVERY_BUCKET, Canary, Samples, Verdict, ran
from specctl.core.messages import Event, Plan, Reason, setting_words
from specctl.core.prompt_steps import with_prompts
from specctl.core.rails import Held
from specctl.core.settings import RolloutSettings

__all__ = ["RolloutGroup", "ServerState", "is_more"]

APPROVAL_S = 600.0
SAMPLE_AGE_S = 60.0
BAR_PAUSES = 10.0
LOST_S = 30.0
"""A canary that was not heard of for this long has failed."""


class ServerState(NamedTuple):
    """One server as polled. ``in_force``: settings by bucket's last decode batch."""

    target: str
    boot_id: str | None
    time_s: float
    in_force: Mapping[int, Setting]
    class_limits: tuple[ClassLimit, ...]
    cells: Sequence[TelemetryCell]
    configured_prob: float | None = None


def is_more(after: Setting, before: Setting, configured_prob: float | None = None) -> bool:
    """Whether a setting may draft or verify more than another one."""
    if after.num_speculative_tokens == 0:
        return False
    configured = configured_prob or 0.0
    new = configured if after.min_token_prob is None else after.min_token_prob
    old = configured if before.min_token_prob is None else before.min_token_prob
    return (
        after.num_speculative_tokens > before.num_speculative_tokens
        or after.width_tokens > before.width_tokens
        or new < old
    )


def _looser(after: tuple[ClassLimit, ...], before: tuple[ClassLimit, ...]) -> bool:
    """Whether rules for classes may let some request draft more: anything but the same or added rules."""
    return after != before and not set(before) <= set(after)


@dataclass(slots=True)
class _Member:
    """``settled``: what was granted, by bucket. ``barred_until_s``: no canary until then."""

    boot_id: str | None = None
    seen_s: float = float("-inf")
    barred_until_s: float = float("-inf")
    settled: dict[int, Setting] = field(default_factory=dict)
    class_limits: tuple[ClassLimit, ...] = ()
    samples: dict[int, Samples] = field(default_factory=dict)
    going_back: dict[int, Setting] = field(default_factory=dict)

    def has_samples(self, bucket: int) -> bool:
        return bucket in self.samples and self.samples[bucket].is_enough


class RolloutGroup:
    """Servers that change one after another. One that is alone is let through."""

    def __init__(self) -> None:
        self._members: dict[str, _Member] = {}
        self._canary: Canary | None = None
        self._approved: dict[int, tuple[Setting, float]] = {}
        self._paused: dict[int, tuple[Setting, float]] = {}
        self._approved_limits: tuple[ClassLimit, ...] | None = None
        self._limits_paused_until_s = float("-inf")
        self._has_trials = True

    @property
    def canary(self) -> str | None:
        return None if self._canary is None else self._canary.target

    @property
    def _is_alone(self) -> bool:
        """Whether changes need no trial."""
        return len(self._members) < 2 or not self._has_trials

    def join(self, target: str) -> None:
        self._members.setdefault(target, _Member())

    def leave(self, target: str) -> None:
        self._members.pop(target, None)
        self.withdraw(target)

    def withdraw(self, target: str) -> None:
        """End the target's trial, if it has one, without a verdict: it keeps its table."""
        if self._canary is not None and self._canary.target == target:
            self._canary = None

    def polled(self, server: ServerState, settings: RolloutSettings) -> tuple[Event, ...]:
        """Take in a poll, and judge the trial that runs."""
        lost = self._meet(server, settings)
        self._watch(server)
        judged = self._judge(server, settings)
        return tuple(event for event in (lost, judged) if event is not None)

    def held(
        self, server: ServerState, wanted_limits: tuple[ClassLimit, ...], settings: RolloutSettings
    ) -> Held:
        """What the server's plan is made under."""
        self._has_trials = settings.canary_s > 0
        member, is_alone = self._members[server.target], self._is_alone
        exact = {
            bucket: (setting, Reason.ROLLBACK, "the trial of more was worse here")
            for bucket, setting in member.going_back.items()
            if server.in_force.get(bucket) != setting
        }
        ceilings: dict[int, tuple[Setting, Reason, str]] = {}
        for bucket, settled in member.settled.items():
            most, why = self._most(bucket, settled, member, server, is_alone=is_alone)
            if why is not None:
                ceilings[bucket] = most, Reason.CANARY_WAIT, why
        limits = wanted_limits
        if not is_alone and _looser(wanted_limits, member.class_limits):
            is_open = self._approved_limits == wanted_limits or (
                self._canary is None
                and server.time_s >= max(member.barred_until_s, self._limits_paused_until_s)
                and member.has_samples(EVERY_BUCKET)
            )
            limits = wanted_limits if is_open else member.class_limits
        return Held(exact, ceilings, limits)

    def try_start(self, server: ServerState, plan: Plan) -> tuple[bool, tuple[Event, ...]]:
        """Reserve the trial that a plan needs before it is sent. False: another one began meanwhile."""
        member = self._members[server.target]
        raised = {
            choice.last: choice.after
            for choice in plan.choices
            if is_more(choice.after, member.settled.get(choice.last, choice.before), server.configured_prob)
            and not self._is_approved(choice.last, choice.after, plan.time_s)
        }
        has_limits = _looser(plan.class_limits, member.class_limits) and (
            self._approved_limits != plan.class_limits
        )
        if self._is_alone or not (raised or has_limits):
            return True, ()
        if self._canary is not None:
            return False, ()
        planned_from = {choice.last: choice.before for choice in plan.choices}
        before = {bucket: member.settled.get(bucket, planned_from[bucket]) for bucket in raised}
        baseline = {bucket: member.samples.pop(bucket, Samples()) for bucket in raised}
        if has_limits:
            nothing = Setting(num_speculative_tokens=0)
            before[EVERY_BUCKET] = raised[EVERY_BUCKET] = nothing
            baseline[EVERY_BUCKET] = member.samples.pop(EVERY_BUCKET, Samples())
        self._canary = Canary(
            server.target, plan.time_s, before, raised, baseline, class_limits_before=member.class_limits
        )
        words = "canary: " + ", ".join(
            "rules for traffic classes"
            if bucket == EVERY_BUCKET
            else f"batch up to {bucket}: {setting_words(before[bucket])} -> {setting_words(after)}"
            for bucket, after in raised.items()
        )
        return True, (Event("canary", server.target, words, self._canary.record()),)

    def accepted(self, target: str, plan: Plan) -> None:
        """The server has put the plan in force."""
        member = self._members[target]
        member.class_limits = plan.class_limits
        for choice in plan.choices:
            bucket = choice.last
            member.going_back.pop(bucket, None)
            if member.settled.get(bucket) != choice.after:
                member.settled[bucket] = choice.after
                member.samples.pop(bucket, None)
            approved, used_s = self._approved.get(bucket, (None, 0.0))
            if approved == choice.after and plan.time_s - used_s < APPROVAL_S:
                self._approved[bucket] = choice.after, plan.time_s
            canary = self._canary
            is_trial = canary is not None and canary.target == target and bucket in canary.to
            if canary is not None and is_trial and is_more(canary.to[bucket], choice.after):
                self._canary = None

    def refused(self, target: str, time_s: float) -> None:
        """The server did not take the plan of this time: a trial that was reserved for it has not begun."""
        canary = self._canary
        if canary is not None and (canary.target, canary.started_s) == (target, time_s):
            self._members[target].samples.update(canary.baseline)
            self._canary = None

    def _meet(self, server: ServerState, settings: RolloutSettings) -> Event | None:
        """Bring what is known of the server up to the table in force; the end of a trial that was lost."""
        member, canary = self._members.setdefault(server.target, _Member()), self._canary
        lost: Event | None = None
        if member.boot_id != server.boot_id:
            if canary is not None and canary.target == server.target:
                lost = self._fail(canary, "the engine restarted", server.time_s, settings)
            member = self._members[server.target] = _Member(
                server.boot_id, barred_until_s=member.barred_until_s, class_limits=server.class_limits
            )
        elif canary is not None and canary.target != server.target:
            other = self._members[canary.target]
            if server.time_s - max(other.seen_s, canary.started_s) > LOST_S:
                why = "it cannot be changed or does not answer"
                lost = self._fail(canary, why, server.time_s, settings)
                other.barred_until_s = server.time_s + BAR_PAUSES * settings.pause_s
        member.seen_s = server.time_s
        for bucket, setting in server.in_force.items():
            # Somebody else changed it: that is the table to start from.
            if bucket not in member.going_back:
                member.settled[bucket] = setting
        return lost

    def _watch(self, server: ServerState) -> None:
        member = self._members[server.target]
        canary = self._canary
        for cell in with_prompts(server.cells):
            if cell.has_prefill or not cell.request_steps:
                continue
            if canary is not None and canary.target == server.target:
                canary.add(server.time_s, cell)
            settled = member.settled.get(cell.decode_batch_to)
            keys = [EVERY_BUCKET]
            if settled is not None and ran(cell, settled):
                keys.append(cell.decode_batch_to)
            for key in keys:
                samples = member.samples.setdefault(key, Samples())
                samples.forget_before(server.time_s - SAMPLE_AGE_S)
                samples.add(server.time_s, cell)

    def _judge(self, server: ServerState, settings: RolloutSettings) -> Event | None:
        """The verdict on this server's own trial."""
        canary, time_s = self._canary, server.time_s
        if canary is None or canary.target != server.target:
            return None
        verdict = canary.verdict(time_s, settings)
        if verdict is Verdict.WORSE:
            slowest = min(canary.judged, key=canary.left_ratio)
            words = f"{canary.left_ratio(slowest):.0%} of the tokens per second of a request before it"
            return self._fail(canary, words, time_s, settings)
        if verdict is Verdict.RUNNING:
            return None
        self._canary = None
        if verdict is Verdict.PASSED:
            self._approve(canary, time_s)
            words = "canary passed; the others follow"
            return Event("canary_passed", server.target, words, canary.record())
        self._take_back(canary)
        self._members[server.target].barred_until_s = time_s + settings.pause_s
        words = "canary ended: too little traffic for a verdict, so it goes back"
        return Event("canary_ended", server.target, words, canary.record())

    def _approve(self, canary: Canary, time_s: float) -> None:
        for bucket in canary.judged:
            self._approved[bucket] = canary.to[bucket], time_s
            self._paused.pop(bucket, None)
        if EVERY_BUCKET in canary.judged:
            self._approved_limits = self._members[canary.target].class_limits

    def _fail(self, canary: Canary, why: str, time_s: float, settings: RolloutSettings) -> Event:
        self._canary = None
        for bucket, setting in canary.to.items():
            self._paused[bucket] = setting, time_s + settings.pause_s
            self._approved.pop(bucket, None)
        if EVERY_BUCKET in canary.to:
            self._limits_paused_until_s = time_s + settings.pause_s
        self._take_back(canary)
        words = f"canary rolled back: {why}; not again for {settings.pause_s:g} s"
        record = {**canary.record(), "why": why}
        return Event("rollback", canary.target, words, record, is_warning=True)

    def _take_back(self, canary: Canary) -> None:
        member = self._members[canary.target]
        back = {bucket: one for bucket, one in canary.before.items() if bucket != EVERY_BUCKET}
        member.settled.update(back)
        member.going_back.update(back)
        if EVERY_BUCKET in canary.to:
            member.class_limits = canary.class_limits_before
        for bucket in canary.to:
            member.samples.pop(bucket, None)

    def _most(
        self, bucket: int, settled: Setting, member: _Member, server: ServerState, *, is_alone: bool
    ) -> tuple[Setting, str | None]:
        """The most that a bucket may have now, and why no more; None: it may have any."""
        paused, until_s = self._paused.get(bucket, (None, 0.0))
        if paused is not None and server.time_s < until_s:
            return (
                settled,
                f"{setting_words(paused)} failed on a canary; waits {until_s - server.time_s:.0f} s",
            )
        if is_alone:
            return settled, None
        approved = self._approved_at(bucket, server.time_s)
        most = approved if approved is not None and is_more(approved, settled) else settled
        if self._canary is not None:
            is_own = self._canary.target == server.target
            return most, "one change at a time" if is_own else f"{self._canary.target} goes first"
        if server.time_s < member.barred_until_s:
            return most, "another server goes first, as the last trial here had no verdict"
        if not member.has_samples(bucket):
            return most, "too little traffic to judge it by"
        return most, None

    def _approved_at(self, bucket: int, time_s: float) -> Setting | None:
        """Carried by a canary at this decode batch or a fuller one, where drafting pays less."""
        found = [
            setting
            for at, (setting, used_s) in self._approved.items()
            if at >= bucket and time_s - used_s < APPROVAL_S
        ]
        return max(found, key=lambda one: (one.width_tokens, one.num_speculative_tokens), default=None)

    def _is_approved(self, bucket: int, setting: Setting, time_s: float) -> bool:
        approved = self._approved_at(bucket, time_s)
        return approved is not None and not is_more(setting, approved)
