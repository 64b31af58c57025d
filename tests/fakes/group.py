"""Real loops of one group on fake engines, on virtual time."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fakes.clock import ManualClock
from fakes.engine import FakeEngine, Traffic
from fakes.rig import PATIENT_S, Source

from specctl.actuate.http import HttpActuator
from specctl.controller.audit import AuditLog
from specctl.controller.loop import TargetLoop
from specctl.controller.rollout import RolloutGroup
from specctl.http_client import HttpClient
from specctl.metrics.exporter import Exporter
from specctl.observe.engine import EngineObserver
from specctl.policy.loader import parse_policy


class Group:
    """``run`` gives every engine a second of traffic before every look."""

    def __init__(self, engines: list[FakeEngine], policy: str, audit: Path) -> None:
        self.engines, self.audit = engines, audit
        self.clock, self.exporter = ManualClock(), Exporter()
        self.source = Source(parse_policy(policy, "p"))
        self.rollout = RolloutGroup()
        self.is_frozen = False
        self.clients = [HttpClient(engine.url, timeout_s=PATIENT_S) for engine in engines]
        self.loops = [self._loop(client) for client in self.clients]

    def _loop(self, client: HttpClient) -> TargetLoop:
        return TargetLoop(
            client.target,
            EngineObserver(client, self.clock),
            HttpActuator(client),
            self.source,
            owner="me",
            clock=self.clock,
            audit=AuditLog(self.audit, self.clock),
            exporter=self.exporter,
            group=self.rollout,
            is_frozen=lambda: self.is_frozen,
        )

    async def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1.0)
            for engine, loop in zip(self.engines, self.loops, strict=True):
                engine.advance(1.0)
                await loop.tick()

    async def __aenter__(self) -> Group:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self.clients:
            await client.close()

    def tokens(self) -> list[int]:
        return [engine.tokens_at(1) for engine in self.engines]

    async def last_s(self, seconds: int) -> list[tuple[int, ...]]:
        """Each server's settings over the next seconds; a probe changes one of them for a second."""
        seen = []
        for _ in range(seconds):
            await self.run(1)
            seen.append(self.tokens())
        return list(zip(*seen, strict=True))

    def records(self, *events: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.audit.read_text().splitlines()]
        return [line for line in lines if line["event"] in events]


def on_engines(count: int, traffic: Traffic, start_tokens: int = 0) -> tuple[ExitStack, list[FakeEngine]]:
    stack = ExitStack()
    engines = [
        stack.enter_context(FakeEngine(traffic=traffic, start_tokens=start_tokens, seed=i))
        for i in range(count)
    ]
    return stack, engines
