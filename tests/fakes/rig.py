"""One daemon's loop on one fake engine, on virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fakes.clock import ManualClock
from fakes.engine import FakeEngine

from specctl.actuate.base import Actuator
from specctl.actuate.dry_run import DryRunActuator
from specctl.actuate.http import HttpActuator
from specctl.controller.audit import AuditLog
from specctl.controller.loop import TargetLoop
from specctl.http_client import HttpClient
from specctl.metrics.exporter import Exporter
from specctl.observe.engine import EngineObserver
from specctl.policy.loader import parse_policy
from specctl.policy.models import AnyPolicy
from specctl.types import Decision

__all__ = ["PATIENT_S", "Rig", "Source", "records"]

PATIENT_S = 30.0
"""No test but that of a slow target may fail because the machine is busy."""


class Source:
    def __init__(self, policy: AnyPolicy) -> None:
        self.policy: AnyPolicy = policy


class Rig:
    """One daemon's loop on one engine; ``run`` gives a second of traffic before every look."""

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
    ) -> None:
        self.engine, self.clock = engine, clock or ManualClock()
        self.exporter = Exporter()
        self.source = Source(parse_policy(policy, "p"))
        self.client = HttpClient(target or engine.url, token=token, timeout_s=timeout_s)
        actuator: Actuator = HttpActuator(self.client)
        self.loop = TargetLoop(
            target or engine.url,
            EngineObserver(self.client, self.clock),
            DryRunActuator(actuator) if dry_run else actuator,
            self.source,
            owner=owner,
            clock=self.clock,
            audit=AuditLog(audit, self.clock),
            exporter=self.exporter,
        )

    async def run(self, seconds: int, then: Callable[[], None] | None = None) -> list[Decision | None]:
        seen = []
        for _ in range(seconds):
            self.engine.advance(1.0)
            self.clock.advance(1.0)
            seen.append(await self.loop.tick())
        if then is not None:
            then()
        return seen

    def metric(self, name: str, **labels: str) -> float | None:
        return self.exporter.registry.get_sample_value(name, labels)


def records(path: Path, event: str) -> list[dict[str, Any]]:
    return [
        record for line in path.read_text().splitlines() if (record := json.loads(line))["event"] == event
    ]
