"""One target: observe, estimate, decide, apply, read back. The only place that joins the stages.

On a clean stop the last table stays: its lease ends by itself and the engine takes the policy's fallback.
Another daemon that starts meanwhile watches until then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from specctl.actuate.base import Actuator, DesiredTable
from specctl.clock import Clock
from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import ClassLimit
from specctl.contract.table import AppliedTable, TableState
from specctl.controller.accounts import Accounts
from specctl.controller.audit import AuditLog, change_record
from specctl.controller.class_rules import ClassRules
from specctl.controller.core import step
from specctl.controller.freeze import frozen
from specctl.controller.least_chances import InForce, changed_chances, in_force
from specctl.controller.outcome import Outcomes
from specctl.controller.rollout import RolloutGroup, unremembered
from specctl.controller.state import ControllerState, Probe
from specctl.engine_profile import EngineProfile
from specctl.errors import ContractError, LeaseHeld, TableError, TargetError, VersionConflict
from specctl.estimate.first_costs import cost_model
from specctl.estimate.survival import DiscountedSurvival
from specctl.metrics.exporter import Exporter
from specctl.observe.base import Observer
from specctl.policy.models import AnyPolicy
from specctl.policy.settings import largest_not_above
from specctl.types import Decision, Observation, Reason

__all__ = ["PolicySource", "TargetLoop"]

logger = logging.getLogger(__name__)

BACKOFF_MAX_S = 15.0
REFUSED_RETRY_S = 10.0
LEASE_RETRY_MAX_S = 30.0
ADVICE_INTERVAL_S = 60.0


class PolicySource(Protocol):
    """Where the policy in force comes from; it may change between two ticks."""

    policy: AnyPolicy


class TargetLoop:
    """State of one target. ``tick`` never raises for what a server or a network may do."""

    def __init__(
        self,
        target: str,
        observer: Observer,
        actuator: Actuator,
        source: PolicySource,
        *,
        owner: str,
        clock: Clock,
        audit: AuditLog,
        exporter: Exporter,
        group: RolloutGroup | None = None,
        is_frozen: Callable[[], bool] = lambda: False,
        profiles: Sequence[EngineProfile] = (),
    ) -> None:
        """
        Args:
            profiles: step costs to begin with, where one of them is of just this server.
            group: the servers that change one after another; None: this one is alone.
            is_frozen: asked at every look; a policy that says ``frozen`` counts, too.
        """
        self.target = target
        self._observer, self._actuator, self._source = observer, actuator, source
        self._owner, self._clock, self._audit, self._exporter = owner, clock, audit, exporter
        self._group = group or RolloutGroup()
        # Before the first look of any of them: the first one to look must not think that it is alone.
        self._group.join(target)
        self._is_frozen = is_frozen
        self._was_frozen = False
        self._failures = 0
        self._boot_id: str | None = None
        self._told: tuple[float, str] = (float("-inf"), "")
        self._accounts = Accounts(target, owner, audit, exporter)
        self._class_rules = ClassRules(target, owner, audit)
        self._profiles = profiles
        self._forget(None)

    def _forget(self, capabilities: Capabilities | None) -> None:
        self._state = ControllerState(
            survival=DiscountedSurvival(), cost=cost_model(self.target, capabilities, self._profiles)
        )
        self._answer: AppliedTable | None = None
        self._renew_s = float("-inf")
        self._blocked_until_s = float("-inf")
        self._blocked_why: str | None = None
        self._expected: tuple[int, InForce] | None = None
        self._read_back: AppliedTable | None = None
        self._outcomes = Outcomes(self.target, self._audit)
        self._probe: Probe | None = None
        self._accounts.forget()
        self._class_rules.forget()

    @property
    def boot_id(self) -> str | None:
        """Of the engine at the last look; None for a stock server, and before the first look."""
        return self._boot_id

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            started_s = self._clock.now_s()
            try:
                await self.tick()
            except Exception:
                # A bug in one tick must not end the control of every target.
                logger.exception("%s: this look failed", self.target)
                self._exporter.failed(self.target, "bug", is_down=False)
                self._failures += 1
            took_s = self._clock.now_s() - started_s
            self._exporter.ticked(self.target, took_s)
            await self._clock.sleep(max(self.wait_s() - took_s, 0.0), stop)
        self._group.leave(self.target)
        await self._observer.close()
        if self._expected is not None:
            logger.info("%s: the table stays until its lease ends", self.target)

    def wait_s(self) -> float:
        """The policy's interval, doubled with every failure in a row."""
        interval_s = self._source.policy.poll_interval_s
        backoff_s = interval_s * 2.0 ** min(max(self._failures - 1, 0), 10)
        return max(interval_s, min(backoff_s, BACKOFF_MAX_S))

    async def tick(self) -> Decision | None:
        """One look and what follows from it; None when the target could not be looked at."""
        try:
            observation = await self._observer.observe()
        except TargetError as error:
            self._went_down(str(error))
            return None
        self._came_up(observation)
        observation = self._adjusted(observation)
        self._exporter.observed(observation)
        self._check_read_back(observation)
        before = self._state
        self._freeze_or_thaw(observation)
        if self._was_frozen:
            decision = self._held(observation)
        else:
            decision, self._state = step(observation, before, self._source.policy)
            decision = self._admitted(observation, decision, before)
        self._exporter.decided(decision)
        self._outcomes.collect(observation)
        await self._act(observation, decision)
        self._accounts.add(observation, decision, self._source.policy)
        return decision

    def _freeze_or_thaw(self, observation: Observation) -> None:
        is_frozen = self._source.policy.frozen or self._is_frozen()
        self._exporter.frozen(self.target, is_frozen=is_frozen)
        if is_frozen == self._was_frozen:
            return
        self._was_frozen = is_frozen
        # The renewal carries the reason, which `specctl status` shows.
        self._renew_s = float("-inf")
        if is_frozen:
            self._group.withdraw(self.target)
            self._probe = self._state.schedule.running
        event, words = ("frozen", "nothing is changed") if is_frozen else ("thawed", "changes go on")
        version = None if observation.applied is None else observation.applied.version
        logger.info("%s: %s: %s", self.target, event, words)
        self._audit.write(event, self.target, {"owner": self._owner, "version": version})

    def _held(self, observation: Observation) -> Decision:
        """Learn from the look, and keep the table in force. A probe ends first: its value is no setting."""
        watching = replace(observation, may_act=False, why_not_act="frozen")
        decision, self._state = step(watching, self._state, self._source.policy)
        if decision.rows is None or observation.applied is None:
            return decision
        decision, self._probe = frozen(decision, observation.applied, self._probe)
        return decision

    def _admitted(self, observation: Observation, decision: Decision, before: ControllerState) -> Decision:
        """What of it the group lets through now."""
        admission = self._group.admit(observation, decision, self._source.policy.rollout)
        self._state = unremembered(self._state, before, decision, admission.held)
        for event in admission.events:
            level = logging.WARNING if event.event == "rollback" else logging.INFO
            logger.log(level, "%s: %s", event.target, event.words)
            record = {"owner": self._owner, "explanation": event.words, **event.record}
            self._audit.write(event.event, event.target, record)
        return admission.decision

    def _went_down(self, error: str) -> None:
        self._failures += 1
        self._exporter.failed(self.target, "target", is_down=True)
        if self._told[1] != error:
            logger.warning("%s", error)
            self._told = (self._clock.now_s(), error)

    def _came_up(self, observation: Observation) -> None:
        if self._failures:
            logger.info("%s: answers again", self.target)
        self._failures = 0
        if self._boot_id is not None and observation.boot_id != self._boot_id:
            logger.info("%s: the engine restarted; starting afresh", self.target)
        if observation.boot_id != self._boot_id:
            self._forget(observation.capabilities)
            if observation.capabilities is not None:
                known = observation.capabilities
                logger.info("%s: %s on %s %s", self.target, known.method, known.engine, known.engine_version)
                for warning in known.warnings:
                    logger.warning("%s: %s", self.target, warning)
        self._boot_id = observation.boot_id
        for gap in observation.gaps:
            logger.warning("%s: %s", self.target, gap)

    def _adjusted(self, observation: Observation) -> Observation:
        """The newest table known, and whether this daemon may change it."""
        answer, applied = self._answer, observation.applied
        if answer is not None and (applied is None or applied.version < answer.version):
            observation = replace(observation, applied=answer)
        if self._actuator.is_dry_run:
            return replace(observation, may_act=False, why_not_act="dry run")
        if observation.time_s < self._blocked_until_s:
            return replace(observation, may_act=False, why_not_act=self._blocked_why)
        return observation

    def _check_read_back(self, observation: Observation) -> None:
        """The engine must show what it said it applied."""
        applied, capabilities = observation.applied, observation.capabilities
        if self._expected is None or applied is None or capabilities is None:
            return
        version, wanted = self._expected
        if applied.version != version or applied.state is not TableState.LIVE:
            return
        if applied is self._read_back:
            # The very reading that was compared before.
            return
        self._read_back = applied
        if in_force(applied, capabilities) != wanted:
            self._expected = None
            self._refused("read_back", f"table {version} was accepted, but another one is in force")
            self._blocked_until_s = observation.time_s + REFUSED_RETRY_S

    async def _act(self, observation: Observation, decision: Decision) -> None:
        if decision.rows is None or observation.applied is None or observation.capabilities is None:
            self._advise(decision)
            return
        if self._actuator.is_dry_run:
            self._log_dry_run(decision)
            return
        if not observation.may_act:
            return
        is_ours = self._is_ours(observation.applied) and not observation.applied.ranks_behind
        is_renewal_due = observation.time_s >= self._renew_s or not is_ours
        if self._was_frozen and not self._is_ours(observation.applied):
            # Not this daemon's table, or its lease ran out: putting one in force would be a change.
            return
        limits = self._class_limits(observation.capabilities, observation.applied)
        is_kept = not decision.is_change and limits == observation.applied.class_limits
        if is_kept and observation.capabilities.min_token_prob is not None:
            is_kept = not changed_chances(observation.applied.rows, decision.rows, observation.capabilities)
        if is_renewal_due or not is_kept:
            await self._apply(self._desired(observation, decision, limits), observation, decision)

    def _class_limits(self, capabilities: Capabilities, applied: AppliedTable) -> tuple[ClassLimit, ...]:
        policy = self._source.policy
        return self._class_rules.wanted(capabilities, applied, policy, is_frozen=self._was_frozen)

    def _desired(
        self, observation: Observation, decision: Decision, class_limits: tuple[ClassLimit, ...]
    ) -> DesiredTable:
        capabilities, applied, policy = observation.capabilities, observation.applied, self._source.policy
        assert capabilities is not None
        assert applied is not None
        assert decision.rows is not None
        legal = capabilities.num_speculative_tokens_legal
        return DesiredTable(
            base_version=applied.version,
            rows=decision.rows,
            lease_s=min(policy.lease_s, capabilities.lease_max_s),
            fallback_num_speculative_tokens=largest_not_above(policy.fallback_num_speculative_tokens, legal),
            owner=self._owner,
            reason=f"{decision.reason}: {decision.explanation}"[:512],
            class_limits=class_limits,
        )

    async def _apply(self, desired: DesiredTable, observation: Observation, decision: Decision) -> None:
        now_s = observation.time_s
        try:
            answer = await self._actuator.apply(desired)
        except LeaseHeld as held:
            wait_s = min(max(held.remaining_s, 1.0), LEASE_RETRY_MAX_S)
            self._block(now_s + wait_s, "lease", f"{held}; only watching until it ends")
        except VersionConflict as conflict:
            self._refused("version", f"{conflict}; reading it again")
            await self._read_again()
        except TableError as error:
            self._block(now_s + REFUSED_RETRY_S, "refused", f"the engine refuses the table: {error}")
        except ContractError as error:
            self._block(now_s + REFUSED_RETRY_S, "refused", str(error))
        except TargetError as error:
            self._refused("target", str(error))
        else:
            if answer is not None:
                self._applied(answer, desired, observation, decision)

    def _applied(
        self, answer: AppliedTable, desired: DesiredTable, observation: Observation, decision: Decision
    ) -> None:
        assert observation.capabilities is not None
        known = observation.capabilities
        wanted = in_force(desired, known)
        self._answer = answer
        self._renew_s = observation.time_s + desired.lease_s / 3
        self._blocked_why = None
        self._exporter.lease(self.target, is_held=True)
        if in_force(answer, known) != wanted:
            words = "the engine applied another table than asked"
            self._block(observation.time_s + REFUSED_RETRY_S, "read_back", words)
            return
        self._expected, self._read_back = (answer.version, wanted), None
        if observation.applied is not None:
            self._class_rules.applied(observation.applied, answer)
            words = changed_chances(observation.applied.rows, answer.rows, known)
            if words:
                logger.info("%s: %s", self.target, words)
                record = {"owner": self._owner, "explanation": words, "version": answer.version}
                self._audit.write("min_token_prob", self.target, record)
        if decision.is_change:
            self._exporter.changed(self.target)
            is_felt = any(choice.is_active for choice in decision.changed)
            logger.log(
                logging.INFO if is_felt else logging.DEBUG, "%s: %s", self.target, decision.explanation
            )
            record = change_record(decision, owner=self._owner, version=answer.version, dry_run=False)
            self._audit.write("change", self.target, record)
            dwell_s = self._source.policy.guard_rails.dwell_s
            self._outcomes.follow(decision, answer.version, dwell_s)

    async def _read_again(self) -> None:
        try:
            self._answer = await self._actuator.observe()
        except (TargetError, ContractError) as error:
            logger.warning("%s: %s", self.target, error)

    def _is_ours(self, applied: AppliedTable) -> bool:
        return applied.owner == self._owner and applied.state is TableState.LIVE

    def _block(self, until_s: float, kind: str, why: str) -> None:
        """Only watch until ``until_s``. The same reason is logged once."""
        is_news = self._blocked_why is None or kind != "lease"
        self._blocked_until_s = until_s
        self._exporter.lease(self.target, is_held=False)
        if is_news:
            self._refused(kind, why)
        self._blocked_why = why

    def _refused(self, kind: str, why: str) -> None:
        self._exporter.failed(self.target, kind, is_down=False)
        self._audit.write("refused", self.target, {"owner": self._owner, "kind": kind, "error": why})
        logger.warning("%s: %s", self.target, why)

    def _log_dry_run(self, decision: Decision) -> None:
        """A wanted change, once: the engine's table stays, so every tick wants it again."""
        wanted = str([(row.decode_batch_from, row.num_speculative_tokens) for row in decision.rows or ()])
        if not decision.is_change:
            self._told = (decision.time_s, "")
        elif self._told[1] != wanted:
            self._told = (decision.time_s, wanted)
            logger.info("%s: dry run: %s", self.target, decision.explanation)
            record = change_record(decision, owner=self._owner, version=None, dry_run=True)
            self._audit.write("change", self.target, record)

    def _advise(self, decision: Decision) -> None:
        """What cannot be acted on: when its reason changes, else now and then."""
        told_s, told = self._told
        if told == decision.reason and decision.time_s - told_s < ADVICE_INTERVAL_S:
            return
        self._told = (decision.time_s, decision.reason)
        level = logging.WARNING if decision.reason is Reason.NOT_CONTROLLABLE else logging.INFO
        logger.log(level, "%s: %s", self.target, decision.explanation)
        if decision.reason is Reason.RECOMMENDATION:
            record = change_record(decision, owner=self._owner, version=None, dry_run=True)
            self._audit.write("recommendation", self.target, record)
