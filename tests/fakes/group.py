"""Real loops of one group on fake engines, on virtual time."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fakes.clock import ManualClock
from fakes.engine import FakeEngine, Traffic
from fakes.rig import Rig, records

from specctl.core.rollout import RolloutGroup
from specctl.metrics.exporter import Exporter

__all__ = ["Group", "on_engines"]


class Group:
    """``run`` gives every engine a second of traffic before every poll."""

    def __init__(self, engines: list[FakeEngine], policy: str, audit: Path) -> None:
        self.engines, self.audit = engines, audit
        self.clock, self.exporter = ManualClock(), Exporter()
        self.rollout = RolloutGroup()
        self.rigs = [
            Rig(
                engine,
                policy=policy,
                audit=audit,
                clock=self.clock,
                group=self.rollout,
                exporter=self.exporter,
            )
            for engine in engines
        ]

    async def __aenter__(self) -> Group:
        return self

    async def __aexit__(self, *_: object) -> None:
        for rig in self.rigs:
            await rig.client.close()

    def set_policy(self, text: str) -> None:
        for rig in self.rigs:
            rig.set_policy(text)

    def freeze(self, *, is_frozen: bool = True) -> None:
        """As a targets file does."""
        for rig in self.rigs:
            rig.is_frozen = is_frozen

    async def run(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.advance(1.0)
            for rig in self.rigs:
                rig.engine.advance(1.0)
                await rig.loop.tick()

    def tokens(self) -> list[int]:
        return [engine.tokens_at(1) for engine in self.engines]

    def records(self, *events: str) -> list[dict[str, Any]]:
        return records(self.audit, *events)


def on_engines(count: int, traffic: Traffic, **more: Any) -> tuple[ExitStack, list[FakeEngine]]:
    stack = ExitStack()
    engines = [stack.enter_context(FakeEngine(traffic=traffic, seed=i, **more)) for i in range(count)]
    return stack, engines
