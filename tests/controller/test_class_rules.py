"""A policy's rules for classes on their way to an engine."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.clock import ManualClock
from fakes.engine import FakeEngine

from specctl.actuate.http import HttpActuator
from specctl.contract.classes import ClassLimit
from specctl.controller.audit import AuditLog
from specctl.controller.loop import TargetLoop
from specctl.http_client import HttpClient
from specctl.metrics.exporter import Exporter
from specctl.observe.engine import EngineObserver
from specctl.policy.loader import parse_policy

PLAIN = ClassLimit(kind="plain", max_num_speculative_tokens=0)
CODE = ClassLimit(kind="code", max_num_speculative_tokens=2)
NO_RULES = "kind: fixed\nnum_speculative_tokens: 4\nlease_s: 60"
RULES = f"{NO_RULES}\nclasses: [{{kind: plain, max_num_speculative_tokens: 0}}]"


class Rig:
    def __init__(self, engine: FakeEngine, audit: Path) -> None:
        self.engine, self.clock, self.audit = engine, ManualClock(), audit
        self.source = SimpleNamespace(policy=parse_policy(RULES, "p"))

    def run(self, course: Callable[[Rig], Awaitable[None]]) -> None:
        async def whole() -> None:
            async with HttpClient(self.engine.url, timeout_s=30.0) as client:
                self.loop = TargetLoop(
                    self.engine.url,
                    EngineObserver(client, self.clock),
                    HttpActuator(client),
                    self.source,
                    owner="me",
                    clock=self.clock,
                    audit=AuditLog(self.audit, self.clock),
                    exporter=Exporter(),
                )
                await course(self)

        asyncio.run(whole())

    async def look(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.engine.advance(1.0)
            self.clock.advance(1.0)
            await self.loop.tick()

    def records(self, event: str) -> list[dict[str, Any]]:
        lines = map(json.loads, self.audit.read_text().splitlines())
        return [line for line in lines if line["event"] == event]


@pytest.fixture
def audit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Path:
    caplog.set_level(logging.INFO, logger="specctl")
    return tmp_path / "audit.jsonl"


def test_rules_reach_the_engine_and_follow_the_policy(audit: Path) -> None:
    async def course(rig: Rig) -> None:
        await rig.look(3)
        assert rig.engine.class_limits == (PLAIN,)
        puts = len(rig.engine.puts)
        await rig.look(2)
        assert len(rig.engine.puts) == puts
        more = f"{RULES[:-1]}, {{kind: code, max_num_speculative_tokens: 2}}]"
        rig.source.policy = parse_policy(more, "p")
        await rig.look()
        assert rig.engine.class_limits == (PLAIN, CODE)
        rig.source.policy = parse_policy(NO_RULES, "p")
        await rig.look()
        assert rig.engine.class_limits == ()

    with FakeEngine(class_limits_max=16) as engine:
        rig = Rig(engine, audit)
        rig.run(course)
    first, second, third = rig.records("class_limits")
    assert first["explanation"] == "kind plain: at most 0 tokens"
    assert [one["kind"] for one in second["to"]] == ["plain", "code"]
    assert third["explanation"] == "no rules for classes any more"


@pytest.mark.parametrize(("most", "words"), [(0, "does not bound the drafts"), (1, "it takes 1 rules")])
def test_an_engine_that_does_not_take_them_gets_none_and_one_reason(
    audit: Path, caplog: pytest.LogCaptureFixture, most: int, words: str
) -> None:
    async def course(rig: Rig) -> None:
        more = f"{RULES[:-1]}, {{kind: code, max_num_speculative_tokens: 2}}]"
        rig.source.policy = parse_policy(more, "p")
        await rig.look(15)

    with FakeEngine(class_limits_max=most) as engine:
        rig = Rig(engine, audit)
        rig.run(course)
        assert engine.tokens_at(1) == 4
        assert not any(put.class_limits for put in engine.puts)
    assert sum("classes are left out" in record.message for record in caplog.records) == 1
    (refused,) = rig.records("refused")
    assert words in refused["error"]


def test_an_older_plugin_is_not_sent_the_key(audit: Path) -> None:
    """It would refuse the whole table."""
    bodies: list[bytes] = []

    async def course(rig: Rig) -> None:
        await rig.look(2)

    with FakeEngine() as engine:
        put = engine.put
        engine.put = lambda body: (bodies.append(body), put(body))[1]  # type: ignore[method-assign]
        Rig(engine, audit).run(course)
    assert bodies
    assert not any(b"class_limits" in body for body in bodies)


def test_a_freeze_holds_the_rules_in_force(audit: Path) -> None:
    async def course(rig: Rig) -> None:
        await rig.look(3)
        rig.source.policy = parse_policy(f"{NO_RULES}\nfrozen: true", "p")
        await rig.look(3)
        assert rig.engine.class_limits == (PLAIN,)
        rig.source.policy = parse_policy(NO_RULES, "p")
        await rig.look()
        assert rig.engine.class_limits == ()

    with FakeEngine(class_limits_max=16) as engine:
        Rig(engine, audit).run(course)


def test_an_engine_that_drops_the_rules_is_found_out(audit: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def course(rig: Rig) -> None:
        await rig.look(2)

    def without(raw: bytes) -> bytes:
        return json.dumps({**json.loads(raw), "class_limits": []}).encode()

    with FakeEngine(class_limits_max=16) as engine:
        engine.mangle["/specctl/v1/table"] = without
        Rig(engine, audit).run(course)
    assert "the engine applied another table than asked" in caplog.text
