"""Random sequences of faults on a server and its daemons. The engine is a fake one with the real table.

``SPECCTL_FAULT_SEQUENCES`` says how many; each is known by its seed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from fakes.clock import ManualClock
from fakes.engine import COPYING, RANDOM_TEXT, FakeEngine, Traffic
from fakes.rig import Rig

from specctl.contract.table import TablePut, TableState, uniform_rows

SEQUENCES = int(os.environ.get("SPECCTL_FAULT_SEQUENCES", "40"))
ROUTES = [f"/specctl/v1/{name}" for name in ("capabilities", "table", "telemetry")] + ["/metrics"]
BODIES = (b"", b"{", b"[" * 5000, b"null", b'{"boot_id": 3}', b"\xff" * 100, b'{"cells": [1e400]}')
LEASE_S = 10
POLICY = f"kind: goodput\nlease_s: {LEASE_S}\nfallback_num_speculative_tokens: 1\n"
FAULTS = (
    "restart", "status", "body", "cut", "operator", "kill", "second", "stop", "jump", "traffic", "policy",
    "no plugin", "lies", "refuses",
)  # fmt: skip


class Course:
    """A server, up to two daemons, and what may never happen whatever comes."""

    def __init__(self, engine: FakeEngine, audit: Path, seed: int) -> None:
        self.engine, self.audit, self.rng = engine, audit, random.Random(seed)
        self.clock, self.rigs = ManualClock(), list[Rig]()
        self.seen = (engine.boots, engine.version)
        self.starts = 0

    def rig(self) -> Rig:
        self.starts += 1
        return Rig(
            self.engine, policy=POLICY, owner=f"d{self.starts}", clock=self.clock, audit=self.audit,
        )  # fmt: skip

    async def fault(self) -> None:
        kind, engine, rng = self.rng.choice(FAULTS), self.engine, self.rng
        route = rng.choice(ROUTES)
        if kind == "restart":
            engine.restart()
        elif kind == "status":
            engine.forced_status[route] = rng.choice((401, 403, 404, 409, 413, 422, 500, 503))
        elif kind == "body":
            body = rng.choice(BODIES)
            engine.mangle[route] = lambda raw: body
        elif kind == "cut":
            share = rng.random()
            engine.mangle[route] = lambda raw: raw[: int(share * len(raw))]
        elif kind == "operator":
            engine.operator_puts(TablePut(base_version=0, rows=uniform_rows(3), owner="operator", lease_s=5))
        elif kind == "kill" and self.rigs:
            await self.rigs.pop().client.close()
        elif kind == "second" and len(self.rigs) < 2:
            self.rigs.append(self.rig())
        elif kind == "stop" and self.rigs:
            await self.rigs.pop().stop()
        elif kind == "jump":
            # The engine's clock stands still: a daemon that slept, or a late process.
            self.clock.advance(rng.choice((0.0, 0.5, 30.0, 4000.0)))
        elif kind == "traffic":
            kinds = (COPYING, RANDOM_TEXT, None, Traffic(6, RANDOM_TEXT.accept_at))
            engine.traffic = rng.choice(kinds)
        elif kind == "policy" and self.rigs:
            self.rigs[0].set_policy(rng.choice((POLICY, f"{POLICY}frozen: true\n")))
        elif kind == "no plugin":
            engine.has_plugin = False
        elif kind == "lies":
            engine.lies = True
        else:
            engine.refuses_samples = True

    def mend(self) -> None:
        self.engine.forced_status.clear()
        self.engine.mangle.clear()
        self.engine.has_plugin, self.engine.lies = True, False

    async def seconds(self, count: int) -> None:
        for _ in range(count):
            self.engine.advance(1.0)
            self.clock.advance(1.0)
            for rig in self.rigs:
                await rig.loop.tick()
            self.check()

    def check(self) -> None:
        """The version never falls while a process lives, and every lease is short."""
        boots, version = self.seen
        assert self.engine.boots > boots or self.engine.version >= version
        self.seen = self.engine.boots, self.engine.version
        left_s = self.engine.live.read().lease_remaining_s
        assert left_s is None or left_s <= LEASE_S + 1e-6


@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_nothing_is_lost_by_faults(seed: int, tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"

    async def whole() -> None:
        course = Course(engine, audit, seed)
        try:
            await faults(course)
            await afterwards(course)
        finally:
            for rig in course.rigs:
                await rig.client.close()

    async def faults(course: Course) -> None:
        course.rigs.append(course.rig())
        await course.seconds(4)
        for _ in range(course.rng.randint(1, 6)):
            await course.fault()
            await course.seconds(course.rng.randint(1, 4))

    async def afterwards(course: Course) -> None:
        course.mend()
        while course.rigs:
            await course.rigs.pop().client.close()
        # Nobody renews: whatever was in force ends within its lease.
        engine.advance(LEASE_S + 1.0)
        assert engine.state is not TableState.LIVE or engine.lease_s is None
        # The next daemon finds a server that it can steer.
        engine.traffic, engine.refuses_samples = COPYING, False
        course.rigs.append(course.rig())
        await course.seconds(20)
        assert engine.state is TableState.LIVE
        assert engine.owner == f"d{course.starts}"
        assert engine.tokens_at(1) >= 2

    with FakeEngine(start_tokens=2) as engine:
        asyncio.run(whole())
    lines: list[dict[str, Any]] = [json.loads(line) for line in audit.read_text().splitlines()]
    assert all({"when", "event", "target"} <= line.keys() for line in lines)
    versions = [line["version"] for line in lines if line["event"] == "change"]
    assert versions
