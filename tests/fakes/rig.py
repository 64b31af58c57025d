"""One daemon's loop on one fake engine, on virtual time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fakes.clock import ManualClock
from fakes.engine import FakeEngine

from specctl.core.messages import Plan
from specctl.core.rollout import RolloutGroup
from specctl.daemon.audit import AuditLog
from specctl.daemon.context import LoopContext
from specctl.daemon.loop import TargetLoop
from specctl.daemon.reporter import Reporter
from specctl.engine_api.client import EngineClient
from specctl.engine_api.observer import EngineObserver
from specctl.http_client import HttpClient
from specctl.metrics.exporter import Exporter
from specctl.policy.loader import parse_policy
from specctl.policy.models import AnyPolicy

__all__ = ["PATIENT_S", "Rig", "Source", "records"]

PATIENT_S = 30.0
"""No test but that of a slow target may fail because the machine is busy."""


class Source:
    def __init__(self, policy: AnyPolicy) -> None:
        self.policy: AnyPolicy = policy


class Rig:
    """One daemon's loop on one engine; ``run`` gives a second of traffic before every poll."""

    def __init__(
        self,
        engine: FakeEngine,
        *,
        policy: str = "kind: goodput",
        owner: str = "me",
        dry_run: bool = False,
        audit: Path | None = None,
        token: str | None = None,
        clock: ManualClock | None = None,
        target: str | None = None,
        timeout_s: float = PATIENT_S,
        group: RolloutGroup | None = None,
        exporter: Exporter | None = None,
    ) -> None:
        self.engine, self.clock = engine, clock or ManualClock()
        self.target = target or engine.url
        self.exporter = exporter or Exporter()
        self.source = Source(parse_policy(policy, "p"))
        self.is_frozen = False
        self.client = EngineClient(HttpClient(self.target, token=token, timeout_s=timeout_s))
        self.audit = AuditLog(audit, self.clock)
        self.loop = TargetLoop(
            self.target,
            EngineObserver(self.client, self.clock),
            self.client,
            self.source,
            Reporter(self.target, owner, self.audit, self.exporter, monotonic=lambda: 0.0),
            LoopContext(owner, self.clock, is_dry_run=dry_run, is_frozen=lambda: self.is_frozen),
            group,
        )

    async def __aenter__(self) -> Rig:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    def set_policy(self, text: str) -> None:
        self.source.policy = parse_policy(text, "p")

    async def run(self, seconds: int, then: Callable[[], object] | None = None) -> list[Plan | None]:
        seen = []
        for _ in range(seconds):
            self.engine.advance(1.0)
            self.clock.advance(1.0)
            seen.append(await self.loop.tick())
        if then is not None:
            then()
        return seen

    async def stop(self) -> None:
        """As SIGTERM ends it."""
        stop = asyncio.Event()
        stop.set()
        await self.loop.run(stop)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.exporter.registry.get_sample_value(name, {"target": self.target, **labels})


def records(path: Path, *events: str) -> list[dict[str, Any]]:
    """Of the audit log: those of some events, or all."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if not events or line["event"] in events]
