"""The daemon on virtual time: ``TargetLoop`` itself, with an observer and an actuator of a simulated engine.

Nothing of the decision is here. What a real engine's plugin does is done by the same code too: step counters
and the live table with its lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

import numpy as np

from specctl.actuate.base import DesiredTable
from specctl.contract import CONTRACT_VERSION
from specctl.contract.buckets import DecodeBatchBuckets
from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable, TablePut, uniform_rows
from specctl.contract.telemetry import Telemetry
from specctl.controller.audit import AuditLog
from specctl.controller.loop import TargetLoop
from specctl.engine.live_table import LiveTable
from specctl.engine.step_counters import StepCounters, StepRecord
from specctl.engine_profile import EngineProfile
from specctl.metrics.exporter import Exporter
from specctl.observe.counters import cell_deltas, class_deltas
from specctl.policy.models import AnyPolicy
from specctl.simulate import state as at
from specctl.simulate.classes import EngineClasses
from specctl.simulate.engine import SimulatedEngine
from specctl.types import Decision, Observation

__all__ = ["Autotune", "capabilities_of"]

TARGET = "simulated"
LEASE_MAX_S = 3600.0
ROWS_MAX = 64
LOG_STEPS = 512
ClassesTold = Literal["none", "contexts", "kinds"]
_Result = TypeVar("_Result")


def capabilities_of(engine: SimulatedEngine) -> Capabilities:
    """As the plugin would say it of such a server. On a GPU it has no shadow acceptance, so neither here."""
    profile, limits = engine.profile, engine.profile.scheduler
    fingerprint = profile.fingerprint
    name, _, version = fingerprint.engine.partition(" ")
    return Capabilities(
        contract_version=CONTRACT_VERSION,
        engine=name,
        engine_version=version,
        plugin_version="simulated",
        boot_id="simulated",
        model=fingerprint.model,
        gpu=fingerprint.gpu,
        dtype=fingerprint.dtype,
        parallelism=fingerprint.parallelism,
        method=profile.method,
        controllable=True,
        num_speculative_tokens_legal=tuple(range(profile.num_speculative_tokens_max + 1)),
        decode_batch_max=limits.max_num_seqs,
        context_max_tokens=limits.max_model_len,
        decode_batch_buckets=DecodeBatchBuckets(limits.max_num_seqs).uppers,
        rows_max=ROWS_MAX,
        lease_max_s=LEASE_MAX_S,
        has_shadow_acceptance=False,
    )


class _Clock:
    """The engine's virtual time."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine

    def now_s(self) -> float:
        return self._engine.now_s

    def utc(self) -> datetime:
        return datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=self._engine.now_s)

    async def sleep(self, seconds: float, stop: asyncio.Event) -> None:
        raise NotImplementedError("virtual time moves with the engine's steps")


class _Source:
    def __init__(self, policy: AnyPolicy) -> None:
        self.policy = policy


class _Observer:
    """Builds what ``specctl.observe.engine`` builds, from the same counters, without HTTP."""

    def __init__(
        self,
        engine: SimulatedEngine,
        capabilities: Capabilities,
        live: LiveTable,
        counters: StepCounters,
        classes: EngineClasses | None,
    ) -> None:
        self._engine = engine
        self._capabilities = capabilities
        self._live = live
        self._counters = counters
        self._classes = classes
        self._before: tuple[float, Telemetry] | None = None

    async def observe(self) -> Observation:
        now_s, telemetry, before = self._engine.now_s, self._telemetry(), self._before
        self._before = now_s, telemetry
        has_past = before is not None and now_s > before[0]
        return Observation(
            target=TARGET,
            time_s=now_s,
            interval_s=now_s - before[0] if before is not None and has_past else None,
            boot_id=telemetry.boot_id,
            engine_version=self._capabilities.engine_version,
            capabilities=self._capabilities,
            applied=self._live.read(),
            cells=cell_deltas(before[1], telemetry) if before is not None and has_past else None,
            classes=class_deltas(before[1], telemetry) if before is not None and has_past else None,
            running=telemetry.running,
            waiting=telemetry.waiting,
            decoding=telemetry.decoding,
            kv_cache_used_ratio=telemetry.kv_cache_used_ratio,
        )

    async def close(self) -> None:
        return None

    def _telemetry(self) -> Telemetry:
        counts = self._engine.server.counts
        return Telemetry(
            contract_version=CONTRACT_VERSION,
            boot_id=self._capabilities.boot_id,
            uptime_s=self._engine.now_s,
            table_version=self._live.version,
            table_state=self._live.state,
            num_speculative_tokens=max(int(counts[at.LAST_DRAFTS]), 0),
            running=int(counts[at.RUNNING]),
            waiting=int(counts[at.TAIL] - counts[at.HEAD]),
            decoding=self._engine.decode_batch,
            kv_cache_used_ratio=float(counts[at.KV_USED]) / self._engine.profile.scheduler.kv_tokens,
            cells=self._counters.cells(),
            classes=None
            if self._classes is None
            else self._classes.counters.told(is_idle=not counts[at.RUNNING]),
        )


class _Actuator:
    """``PUT /specctl/v1/table`` without HTTP."""

    is_dry_run = False

    def __init__(self, live: LiveTable) -> None:
        self._live = live

    async def apply(self, desired: DesiredTable) -> AppliedTable:
        return self._live.put(
            TablePut(
                base_version=desired.base_version,
                rows=desired.rows,
                lease_s=desired.lease_s,
                fallback_num_speculative_tokens=desired.fallback_num_speculative_tokens,
                owner=desired.owner,
                reason=desired.reason,
            )
        )

    async def observe(self) -> AppliedTable:
        return self._live.read()


class Autotune:
    """``specctl autotune`` with one policy, looking every ``poll_interval_s`` of virtual time.

    Starts from the most drafts that the server was started for, as a server without a table of its own does.
    A look takes no time, and a step that is under way is counted when it has ended. ``classes``: how the
    engine tells traffic apart: "none" (as older plugins), "contexts", or also by the scenario's "kinds".
    """

    log_steps = LOG_STEPS

    def __init__(
        self,
        name: str,
        policy: AnyPolicy,
        profile: EngineProfile | None = None,
        *,
        classes: ClassesTold = "contexts",
    ) -> None:
        """``profile``: what the daemon takes for the server's costs to begin with; None: it learns them."""
        self.name = name
        self._profile = profile
        self._classes_told = classes
        self.poll_interval_s = policy.poll_interval_s
        self._policy = policy
        self.decisions: list[Decision] = []

    def start(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        self._capabilities = capabilities_of(engine)
        most = engine.profile.num_speculative_tokens_max
        self.live = LiveTable(self._capabilities, uniform_rows(most), lambda: engine.now_s)
        self.counters = StepCounters(DecodeBatchBuckets(self._capabilities.decode_batch_max), most)
        told = self._classes_told
        self.classes = None if told == "none" else EngineClasses(engine, has_kinds=told == "kinds")
        clock = _Clock(engine)
        self._loop = TargetLoop(
            TARGET,
            _Observer(engine, self._capabilities, self.live, self.counters, self.classes),
            _Actuator(self.live),
            _Source(self._policy),
            owner="simulated",
            clock=clock,
            audit=AuditLog(None, clock),
            exporter=Exporter(),
            profiles=() if self._profile is None else (self._profile,),
        )
        self._in_force: object = None
        self._take_table()
        self._look()

    def run(self, until_s: float) -> None:
        engine = self._engine
        while engine.now_s < until_s and not engine.is_done:
            self._take_table()
            engine.run(min(until_s, self._lease_end_s()))
            self._drain()
        self._look()

    def _look(self) -> None:
        decision = _finished(self._loop.tick())
        assert decision is not None, "a simulated target can always be looked at"
        self.decisions.append(decision)

    def _lease_end_s(self) -> float:
        remaining_s = self.live.read().lease_remaining_s
        # A lease that ends now has ended: never ask the engine to run for no time.
        return float("inf") if remaining_s is None else self._engine.now_s + max(remaining_s, 1e-6)

    def _take_table(self) -> None:
        """What the engine's scheduler looks up at every step: the live table by decode batch."""
        key = (self.live.version, self.live.state)
        if key == self._in_force:
            return
        self._in_force = key
        sizes = range(self._capabilities.decode_batch_max + 1)
        self._engine.set_table(np.array([self.live.lookup(max(size, 1)) for size in sizes], np.int64))

    def _drain(self) -> None:
        """The engine's steps into the counters that the plugin keeps."""
        engine, counts = self._engine, self._engine.server.counts
        integers = engine.log.integers[: counts[at.LOGGED]].tolist()
        floats = engine.log.floats[: counts[at.LOGGED]].tolist()
        accepted = engine.log.accepted[: counts[at.LOGGED_REQUESTS]].tolist()
        first = 0
        for (drafts, batch, emitted, context, prefill), (step_s, draft_s, ended_s) in zip(
            integers, floats, strict=True
        ):
            record = StepRecord(
                num_speculative_tokens=drafts,
                drafted=[drafts] * batch,
                accepted=accepted[first : first + batch],
                emitted_tokens=emitted,
                context_tokens=context,
                prefill_tokens=prefill,
                step_s=step_s,
                draft_s=draft_s,
                verify_s=step_s - draft_s,
            )
            self.counters.add(record)
            if self.classes is not None:
                members = engine.log.requests[first : first + batch]
                self.classes.count(drafts, members, accepted[first : first + batch], ended_s)
            first += batch
        engine.clear_log()


def _finished(work: Coroutine[Any, Any, _Result]) -> _Result:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError("a simulated look must not wait")
