"""Real loops of one group on fake engines, on virtual time."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fakes.clock import ManualClock
from fakes.engine import COPYING, RANDOM_TEXT, FakeEngine, Traffic

from specctl.actuate.http import HttpActuator
from specctl.contract.table import TableState
from specctl.controller.audit import AuditLog
from specctl.controller.loop import TargetLoop
from specctl.controller.rollout import RolloutGroup
from specctl.http_client import HttpClient
from specctl.metrics.exporter import Exporter
from specctl.observe.vllm import VllmObserver
from specctl.policy.loader import parse_policy
from specctl.policy.models import AnyPolicy

FIXED = "kind: fixed\nnum_speculative_tokens: 8\n"


class Source:
    def __init__(self, policy: AnyPolicy) -> None:
        self.policy: AnyPolicy = policy


class Group:
    """``run`` gives every engine a second of traffic before every look."""

    def __init__(self, engines: list[FakeEngine], policy: str, audit: Path) -> None:
        self.engines, self.audit = engines, audit
        self.clock, self.exporter = ManualClock(), Exporter()
        self.source = Source(parse_policy(policy, "p"))
        self.rollout = RolloutGroup()
        self.clients = [HttpClient(engine.url, timeout_s=30.0) for engine in engines]
        self.loops = [self._loop(client) for client in self.clients]

    def _loop(self, client: HttpClient) -> TargetLoop:
        self.rollout.join(client.target)
        return TargetLoop(
            client.target,
            VllmObserver(client, self.clock),
            HttpActuator(client),
            self.source,
            owner="me",
            clock=self.clock,
            audit=AuditLog(self.audit, self.clock),
            exporter=self.exporter,
            group=self.rollout,
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


@pytest.fixture
def audit(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def on_engines(count: int, traffic: Traffic, start_tokens: int = 0) -> tuple[ExitStack, list[FakeEngine]]:
    stack = ExitStack()
    engines = [
        stack.enter_context(FakeEngine(traffic=traffic, start_tokens=start_tokens, seed=i))
        for i in range(count)
    ]
    return stack, engines


def test_a_policy_that_helps_reaches_one_server_and_then_the_others(audit: Path) -> None:
    stack, engines = on_engines(3, COPYING)

    async def course() -> None:
        async with Group(engines, FIXED, audit) as group:
            await group.run(10)
            assert sorted(group.tokens()) == [0, 0, 8]
            assert all(engine.state is TableState.LIVE for engine in engines)
            await group.run(10)
            assert group.tokens() == [8, 8, 8]
            first, passed = group.records("canary", "canary_passed")
            assert first["target"] == passed["target"]
            assert passed["after_tokens_per_request_s"]["1"] > passed["before_tokens_per_request_s"]["1"]
            assert group.records("rollback") == []

    with stack:
        asyncio.run(course())


def test_a_policy_that_harms_never_reaches_the_second_server(audit: Path) -> None:
    stack, engines = on_engines(3, RANDOM_TEXT)

    async def course() -> None:
        async with Group(engines, FIXED, audit) as group:
            most = 0
            for _ in range(50):
                await group.run(1)
                most = max(most, sum(tokens > 0 for tokens in group.tokens()))
            assert most == 1
            assert group.tokens() == [0, 0, 0]
            assert all(engine.state is TableState.LIVE for engine in engines)
            (back,) = group.records("rollback")
            assert "of the tokens per second of a request before it" in back["why"]
            changes = [record["reason"] for record in group.records("change")]
            assert changes == ["set_by_policy", "rollback"]

    with stack:
        asyncio.run(course())


def test_fewer_drafts_reach_every_server_in_one_look(audit: Path) -> None:
    stack, engines = on_engines(3, COPYING, start_tokens=8)

    async def course() -> None:
        async with Group(engines, FIXED, audit) as group:
            await group.run(3)
            group.source.policy = parse_policy("kind: off", "p")
            await group.run(1)
            assert group.tokens() == [0, 0, 0]

    with stack:
        asyncio.run(course())


@pytest.mark.parametrize("start_tokens", [0, 8])
def test_the_learning_policy_settles_in_a_group(audit: Path, start_tokens: int) -> None:
    stack, engines = on_engines(3, COPYING, start_tokens)

    async def course() -> None:
        async with Group(engines, "kind: goodput", audit) as group:
            await group.run(60)
            assert min(max(seen) for seen in await group.last_s(3)) >= 7
            assert group.records("rollback") == []
            for engine in engines:
                engine.traffic = RANDOM_TEXT
            await group.run(15)
            assert max(min(seen) for seen in await group.last_s(3)) <= 1

    with stack:
        asyncio.run(course())


def test_a_lying_canary_does_not_hold_up_its_group_for_ever(audit: Path) -> None:
    stack, engines = on_engines(3, COPYING)

    async def course() -> None:
        async with Group(engines, FIXED, audit) as group:
            engines[0].lies = True
            await group.run(200)
            assert group.tokens()[1:] == [8, 8]
            assert group.records("refused")

    with stack:
        asyncio.run(course())
