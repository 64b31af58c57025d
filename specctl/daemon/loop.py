"""One target: poll, learn, plan under the group's constraints, put, read back. The stages meet here only."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from specctl.contract.capabilities import Capabilities
from specctl.contract.setting import Setting
from specctl.contract.table import AppliedTable, TablePut, TableState
from specctl.core.account import Account, Outcome, RestartAdvice
from specctl.core.controller import Controller
from specctl.core.explain import limits_changes, table_changes
from specctl.core.messages import Plan, Reason
from specctl.core.rails import NOTHING_HELD, Held, held_off
from specctl.core.rollout import RolloutGroup, ServerState
from specctl.core.soundness import Soundness
from specctl.core.supervision import Switches
from specctl.core.table_rows import row_at
from specctl.daemon.context import LoopContext, Observer, PolicySource, TableRoutes
from specctl.daemon.reporter import Reporter
from specctl.daemon.table_put import put_at_stop, put_of_plan
from specctl.errors import ContractError, LeaseHeld, SpecctlError, TableError, TargetError, VersionConflict
from specctl.policy.models import AnyPolicy
from specctl.types import Observation

__all__ = ["TargetLoop"]

BACKOFF_MAX_S = 15.0
REFUSED_RETRY_S = 10.0
LEASE_RETRY_MAX_S = 30.0
RENEWALS = 3.0
"""A lease is renewed after this part of it."""
STOP_TIMEOUT_S = 5.0
REST_BY_BUSY = 4.0
"""A target rests for so many times as long as its decision kept all others waiting."""


class TargetLoop:
    """State of one target. ``tick`` never raises for what a server or a network may do."""

    def __init__(
        self,
        target: str,
        observer: Observer,
        routes: TableRoutes,
        source: PolicySource,
        reporter: Reporter,
        context: LoopContext,
        group: RolloutGroup | None = None,
    ) -> None:
        """``group``: the servers that change one after another; None: this one is alone."""
        self.target = target
        self._observer, self._routes, self._source = observer, routes, source
        self._reporter, self._context = reporter, context
        self._group = group or RolloutGroup()
        # Before the first poll of any of them: the first one to poll must not take itself for alone.
        self._group.join(target)
        self._failures = 0
        self._busy_s = 0.0
        self._is_frozen = False
        self.boot_id: str | None = None
        """Of the engine at the last poll; None for a stock server, and before the first poll."""
        self.acting_frozen: bool | None = None
        """Whether the change under way was decided while frozen; None: none is under way."""
        # Over restarts: what a deploy has changed is seen by what was before it.
        self._soundness = Soundness()
        self._switches = Switches()
        self._forget(None)

    def _forget(self, capabilities: Capabilities | None) -> None:
        self._controller = Controller()
        self._capabilities = capabilities
        self._in_force: AppliedTable | None = None
        self._wanted: tuple[int, TablePut] | None = None
        self._unanswered: tuple[TablePut, Plan] | None = None
        """Put, without an answer: it may be in force or not."""
        self._may_hold_lease = False
        self._renew_s = self._blocked_until_s = float("-inf")
        self._blocked_why: str | None = None
        self._refuses_samples = False
        self._account, self._outcome, self._advice = Account(), Outcome(), RestartAdvice()

    async def run(self, stop: asyncio.Event) -> None:
        clock = self._context.clock
        while not stop.is_set():
            started_s = clock.now_s()
            try:
                await self.tick()
            except Exception:
                # A bug in one tick must not end the control of every target; it backs off like a failure.
                self._failures += 1
                self._reporter.failed_tick()
            took_s = clock.now_s() - started_s
            self._reporter.ticked(took_s)
            await clock.sleep(max(self.wait_s() - took_s, REST_BY_BUSY * self._busy_s), stop)
        self._group.leave(self.target)
        await self._stop()
        await self._observer.close()

    def wait_s(self) -> float:
        """The policy's interval, doubled with every failure in a row."""
        interval_s = self._source.policy.poll_interval_s
        backoff_s = interval_s * 2.0 ** min(max(self._failures - 1, 0), 10)
        return max(interval_s, min(backoff_s, BACKOFF_MAX_S))

    async def tick(self) -> Plan | None:
        """One poll and what follows from it; None when the target could not be polled."""
        try:
            observation = await self._observer.observe()
        except TargetError as error:
            self._failures += 1
            self._reporter.unreachable(str(error), self._context.clock.now_s())
            return None
        started_s = time.thread_time()
        self._arrived(observation)
        observation = self._with_newest_table(observation)
        policy = self._policy(observation)
        self._reporter.polled(observation)
        self._check_read_back(observation)
        self._take_unanswered(observation, policy)
        if (shown := self._controller.learn(observation)) is not None:
            self._reporter.event(shown)
        if self._soundness.update(observation):
            self._reporter.soundness(self._soundness.fault)
        switched = self._switches.update(observation, supervises=policy.supervises)
        if switched is not None:
            self._reporter.event(switched)
        self.acting_frozen = policy.frozen
        try:
            plan = await self._decide(observation, policy, started_s)
        finally:
            self.acting_frozen = None
        self._account.update(observation, plan)
        self._reporter.figures(self._account, observation.time_s)
        if self._advice.update(observation, plan, policy.advise_restart_after_s):
            self._reporter.advice(self._advice)
        self._failures = 0
        return plan

    async def _decide(self, observation: Observation, policy: AnyPolicy, started_s: float) -> Plan:
        """Plan, and put what the plan changes. ``started_s``: when this thread began with the observation."""
        plan = self._planned(observation, policy)
        self._busy_s = min(time.thread_time() - started_s, BACKOFF_MAX_S / REST_BY_BUSY)
        self._reporter.planned(plan)
        record = self._outcome.collect(observation)
        if record is not None:
            self._reporter.outcome(record)
        await self._act(observation, policy, plan)
        return plan

    def _arrived(self, observation: Observation) -> None:
        self._reporter.reachable()
        if observation.boot_id != self.boot_id:
            is_restart = self.boot_id is not None
            self._forget(observation.capabilities)
            self._reporter.started(observation.capabilities, is_restart=is_restart)
        self.boot_id = observation.boot_id

    def _with_newest_table(self, observation: Observation) -> Observation:
        """A PUT's answer is newer than what was read before it."""
        answer, applied = self._in_force, observation.applied
        if self._refuses_samples:
            observation = replace(observation, capabilities=self._capabilities)
        if answer is not None and (applied is None or applied.version < answer.version):
            observation = replace(observation, applied=answer)
        self._in_force = observation.applied or answer
        if self._context.is_dry_run:
            return replace(observation, may_act=False, why_not_act="dry run")
        if observation.time_s < self._blocked_until_s:
            return replace(observation, may_act=False, why_not_act=self._blocked_why)
        return observation

    def _policy(self, observation: Observation) -> AnyPolicy:
        policy = self._source.policy
        is_frozen = policy.frozen or self._context.is_frozen()
        if is_frozen != self._is_frozen:
            self._is_frozen = is_frozen
            # The renewal carries the reason, which `specctl status` shows.
            self._renew_s = float("-inf")
            if is_frozen:
                self._group.withdraw(self.target)
            version = None if observation.applied is None else observation.applied.version
            self._reporter.frozen(is_frozen=is_frozen, version=version)
        return policy if policy.frozen == is_frozen else policy.model_copy(update={"frozen": is_frozen})

    def _planned(self, observation: Observation, policy: AnyPolicy) -> Plan:
        server = self._server_state(observation)
        if server is None or policy.frozen or self._context.is_trial():
            return self._controller.plan(observation, policy, self._unsound(policy, NOTHING_HELD))
        for event in self._group.polled(server, policy.rollout):
            self._reporter.event(event)
        plan = self._plan_within(observation, policy, server)
        if not observation.may_act or plan.rows is None:
            return plan
        may_start, events = self._group.try_start(server, plan)
        for event in events:
            self._reporter.event(event)
        return plan if may_start else self._plan_within(observation, policy, server)

    def _plan_within(self, observation: Observation, policy: AnyPolicy, server: ServerState) -> Plan:
        limits = self._controller.class_limits(policy)
        held = self._group.held(server, limits, policy.rollout) if observation.may_act else NOTHING_HELD
        return self._controller.plan(observation, policy, self._unsound(policy, held))

    def _unsound(self, policy: AnyPolicy, held: Held) -> Held:
        """Off, where the drafts are not sound and the policy says so."""
        space, fault = self._controller.space, self._soundness.fault
        if fault is None or policy.soundness != "off" or space is None:
            return held
        return held_off(held, space, Reason.UNSOUND, fault.words)

    def _server_state(self, observation: Observation) -> ServerState | None:
        space, applied = self._controller.space, observation.applied
        if space is None or applied is None or observation.capabilities is None:
            return None
        in_force: dict[int, Setting] = {}
        for first, last in space.buckets:
            row = row_at(applied.rows, first)
            if row is not None:
                in_force[last] = row.setting
        return ServerState(
            self.target,
            observation.boot_id,
            observation.time_s,
            in_force,
            applied.class_limits,
            observation.cells or (),
            observation.capabilities.min_token_prob,
        )

    def _check_read_back(self, observation: Observation) -> None:
        """The engine must show what it said it applied."""
        applied = observation.applied
        if self._wanted is None or applied is None:
            return
        version, put = self._wanted
        if applied.version != version or applied.state is not TableState.LIVE:
            return
        if table_changes(put.rows, applied.rows) or put.class_limits != applied.class_limits:
            self._wanted = None
            self._block(
                observation.time_s + REFUSED_RETRY_S,
                "read_back",
                f"table {version} was accepted, but another one is in force",
            )

    async def _act(self, observation: Observation, policy: AnyPolicy, plan: Plan) -> None:
        applied = observation.applied
        if plan.rows is None or applied is None or observation.capabilities is None:
            return
        if self._context.is_dry_run:
            self._reporter.dry_run(plan)
            return
        if self._context.is_trial() and not policy.frozen:
            self._reporter.dry_run(plan)
            policy = policy.model_copy(update={"frozen": True})
            plan = self._controller.plan(observation, policy)
        if not observation.may_act or observation.time_s < self._blocked_until_s:
            self._group.refused(self.target, observation.time_s)
            return
        is_ours = applied.owner == self._context.owner and applied.state is TableState.LIVE
        if plan.is_held and not is_ours:
            # Not this daemon's table, or its lease ran out: putting one in force would be a change.
            return
        is_due = observation.time_s >= self._renew_s or not is_ours or bool(applied.ranks_behind)
        if is_due or plan.is_change or plan.rows != applied.rows:
            await self._put(observation, policy, plan)

    async def _put(self, observation: Observation, policy: AnyPolicy, plan: Plan) -> None:
        put = put_of_plan(observation, policy, plan, self._context.owner)
        try:
            answer = await self._routes.put(put)
        except SpecctlError as error:
            self._group.refused(self.target, observation.time_s)
            if isinstance(error, TargetError):
                self._unanswered, self._may_hold_lease = (put, plan), True
            await self._refused(error, observation.time_s)
            return
        self._unanswered, self._may_hold_lease = None, True
        self._wanted = answer.version, put
        self._check_read_back(replace(observation, applied=answer))
        if self._wanted is None:
            self._in_force = answer
            self._group.refused(self.target, observation.time_s)
            return
        self._applied(observation, policy, put, plan, answer)

    def _applied(
        self, observation: Observation, policy: AnyPolicy, put: TablePut, plan: Plan, answer: AppliedTable
    ) -> None:
        """``put`` is in force as ``answer``."""
        self._in_force = answer
        self._renew_s = observation.time_s + (put.lease_s or 0.0) / RENEWALS
        self._blocked_why = None
        self._controller.accepted(plan)
        if not policy.frozen:
            self._group.accepted(self.target, plan)
        self._reporter.applied(plan, answer.version)
        if plan.is_felt:
            record = self._outcome.follow(plan, answer.version, policy.guard_rails.dwell_s)
            if record is not None:
                self._reporter.outcome(record)

    def _take_unanswered(self, observation: Observation, policy: AnyPolicy) -> None:
        """A table whose PUT got no answer is seen in force: its change is recorded."""
        applied = observation.applied
        if self._unanswered is None or applied is None:
            return
        put, plan = self._unanswered
        if applied.version <= put.base_version:
            return
        self._unanswered = None
        if (applied.version, applied.owner, applied.reason) == (put.base_version + 1, put.owner, put.reason):
            self._applied(observation, policy, put, plan, applied)

    async def _refused(self, error: SpecctlError, now_s: float) -> None:
        """The table in force stays."""
        if isinstance(error, LeaseHeld):
            wait_s = min(max(error.remaining_s, 1.0), LEASE_RETRY_MAX_S)
            self._block(now_s + wait_s, "lease", f"{error}; only watching until it ends")
        elif isinstance(error, VersionConflict):
            self._reporter.refused("version", f"{error}; reading it again", now_s)
            await self._read_again()
        elif isinstance(error, TableError) and self._capabilities is not None and _is_of_samples(error):
            self._refuses_samples = True
            self._capabilities = self._capabilities.model_copy(update={"sample_every_min_steps": None})
            self._reporter.refused("sample", f"{error}; going on without samples", now_s)
        elif isinstance(error, ContractError):
            self._block(now_s + REFUSED_RETRY_S, "refused", f"the engine refuses the table: {error}")
        else:
            self._reporter.refused("target", str(error), now_s)

    async def _read_again(self) -> None:
        try:
            self._in_force = await self._routes.table()
        except SpecctlError:
            self._in_force = None

    def _block(self, until_s: float, kind: str, why: str) -> None:
        """Only watch until then."""
        self._blocked_until_s, self._blocked_why = until_s, why
        self._reporter.refused(kind, why, self._context.clock.now_s())

    async def _stop(self) -> None:
        """A clean stop releases the lease and leaves in force what the policy says."""
        applied, capabilities, policy = self._in_force, self._capabilities, self._source.policy
        if not self._may_hold_lease or capabilities is None:
            return
        is_held = policy.frozen or self._context.is_frozen()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                if applied is None or self._wanted is None or self._unanswered is not None:
                    # The last PUT is in force or not, or another table than it.
                    applied = await self._routes.table()
                if applied.owner != self._context.owner and applied.state is not TableState.FALLBACK:
                    return
                put, words = put_at_stop(applied, capabilities, policy, self._context.owner, is_held=is_held)
                answer = await self._routes.put(put)
        except (SpecctlError, TimeoutError) as error:
            self._reporter.stopped(f"the table could not be released ({error}); its lease ends by itself")
        else:
            changes = (
                *table_changes(applied.rows, put.rows),
                *limits_changes(applied.class_limits, put.class_limits),
            )
            self._reporter.stopped(f"stopped, the lease is released, {words}", answer.version, changes)


def _is_of_samples(error: TableError) -> bool:
    """Nothing of the table was refused but its samples."""
    return all(refusal.field.startswith("sample") for refusal in error.refusals)
