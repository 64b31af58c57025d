"""The daemon on virtual time: its own loop, with a simulated engine as its target.

Nothing of the plan is here. ``daemon_of`` is the one place that knows which daemon it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar

from specctl.contract.table import AppliedTable, TablePut
from specctl.core.messages import Plan
from specctl.daemon.audit import AuditLog
from specctl.daemon.context import LoopContext
from specctl.daemon.loop import TargetLoop
from specctl.daemon.reporter import Reporter
from specctl.metrics.exporter import Exporter
from specctl.policy.models import AnyPolicy
from specctl.simulate.engine import SimulatedEngine
from specctl.simulate.target import LOG_STEPS, TARGET, SimulatedTarget
from specctl.types import Observation

__all__ = ["Autotune", "Daemon", "DaemonOf", "daemon_of"]

_Result = TypeVar("_Result")


class Daemon(Protocol):
    """What steers a target, one observation at a time."""

    def tick(self) -> Plan | None:
        """Observe, decide, put. None: the target could not be observed."""

    def wait_s(self) -> float:
        """Until the next tick."""


DaemonOf = Callable[[SimulatedTarget, SimulatedEngine, AnyPolicy], Daemon]


class Autotune:
    """``specctl autotune`` with one policy, ticking every ``poll_interval_s`` of virtual time.

    A tick takes no time."""

    log_steps = LOG_STEPS

    def __init__(
        self,
        name: str,
        policy: AnyPolicy,
        *,
        daemon: DaemonOf | None = None,
    ) -> None:
        self.name = name
        self.poll_interval_s = policy.poll_interval_s
        self._policy = policy
        self._daemon_of = daemon or daemon_of
        self.plans: list[Plan] = []

    def start(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        self.target = SimulatedTarget(engine)
        self._daemon = self._daemon_of(self.target, engine, self._policy)
        self._next_s = engine.now_s
        self._tick()

    def run(self, until_s: float) -> None:
        while self._engine.now_s < until_s and not self._engine.is_done:
            self.target.run(min(until_s, max(self._next_s, self._engine.now_s + 1e-6)))
            if self._engine.now_s >= self._next_s:
                self._tick()

    def _tick(self) -> None:
        plan = self._daemon.tick()
        if plan is not None:
            self.plans.append(plan)
        # Ticks keep to their grid: several in one long step would see nothing new.
        wait_s = self._daemon.wait_s()
        self._next_s += wait_s * max((self._engine.now_s - self._next_s) // wait_s + 1, 1)


def daemon_of(target: SimulatedTarget, engine: SimulatedEngine, policy: AnyPolicy) -> Daemon:
    """The daemon that ``specctl autotune`` runs."""
    clock = _Clock(engine)
    context = LoopContext("simulated", clock)
    reporter = Reporter(TARGET, context.owner, AuditLog(None, clock), Exporter())
    loop = TargetLoop(TARGET, _Observer(target), _Routes(target), _Source(policy), reporter, context)
    return _Loop(loop)


class _Loop:
    def __init__(self, loop: TargetLoop) -> None:
        self._loop = loop

    def tick(self) -> Plan | None:
        return _finished(self._loop.tick())

    def wait_s(self) -> float:
        return self._loop.wait_s()


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
    def __init__(self, target: SimulatedTarget) -> None:
        self._target = target

    async def observe(self) -> Observation:
        return self._target.observe()

    async def close(self) -> None:
        return None


class _Routes:
    def __init__(self, target: SimulatedTarget) -> None:
        self._target = target

    async def put(self, change: TablePut) -> AppliedTable:
        return self._target.put(change)

    async def table(self) -> AppliedTable:
        return self._target.live.read()


def _finished(work: Coroutine[Any, Any, _Result]) -> _Result:
    """The result of a coroutine that never waits."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    work.close()
    raise RuntimeError("a simulated tick must not wait")
