from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from fakes.clock import ManualClock
from fakes.engine import FakeEngine

from specctl.actuate.http import HttpActuator
from specctl.clock import SystemClock
from specctl.contract.table import TableState
from specctl.controller.audit import AuditLog
from specctl.controller.daemon import Fleet
from specctl.controller.loop import TargetLoop
from specctl.controller.rollout import RolloutGroup
from specctl.http_client import HttpClient
from specctl.metrics.exporter import Exporter
from specctl.observe.engine import EngineObserver
from specctl.policy.watch import PolicyFile, PolicyFiles
from specctl.targets.base import Assignment, make_target

POLICY = Path("policy.yaml")


class Roster:
    def __init__(self) -> None:
        self.now: list[Assignment] = []

    def assignments(self) -> list[Assignment]:
        return self.now

    def set(self, *urls: str, policy: Path = POLICY) -> None:
        self.now = [Assignment(make_target(url), policy, "all") for url in urls]


class Loop:
    """Stands for a target's loop. ``ending``: it ends only when this is set."""

    def __init__(self, url: str, boot_id: str | None) -> None:
        self.url, self.boot_id = url, boot_id
        self.is_running = False
        self.ending = asyncio.Event()
        self.ending.set()

    async def run(self, stop: asyncio.Event) -> None:
        self.is_running = True
        await stop.wait()
        await self.ending.wait()
        self.is_running = False
        if "bug" in self.url:
            raise RuntimeError("a bug")


class Policies:
    is_valid = True

    def get(self, path: Path) -> Path:
        return path

    def refresh(self) -> None:
        return None


class Rig:
    def __init__(self) -> None:
        self.roster, self.exporter = Roster(), Exporter()
        self.loops: list[Loop] = []
        self.boot_ids: dict[str, str] = {}
        self.fleet = Fleet(self.roster, Policies(), self._make, self.exporter, ManualClock())

    def _make(self, assignment: Assignment, policy: Path) -> Loop:
        url = assignment.target.url
        self.loops.append(Loop(url, self.boot_ids.get(url)))
        return self.loops[-1]

    @property
    def live(self) -> list[str]:
        return sorted(loop.url for loop in self.loops if loop.is_running)

    async def run(self, course: Callable[[], object]) -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(self.fleet.run(stop))
        try:
            await course()  # type: ignore[misc]
        finally:
            stop.set()
            await task
        assert self.live == []


async def passes() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_targets_come_and_go() -> None:
    rig = Rig()

    async def course() -> None:
        for now in (["a:1"], ["a:1", "b:1", "c:1"], ["c:1"], [], ["a:1", "bug:1"], ["a:1"]):
            rig.roster.set(*now)
            await passes()
            assert rig.live == [f"http://{url}" for url in now]
            assert rig.exporter.registry.get_sample_value("specctl_watched_targets") == len(now)

    asyncio.run(rig.run(course))
    assert len(rig.loops) == 5


def test_another_policy_is_another_loop_after_the_first_has_ended() -> None:
    rig = Rig()

    async def course() -> None:
        rig.roster.set("a:1")
        await passes()
        first = rig.loops[0]
        first.ending.clear()
        rig.roster.set("a:1", policy=Path("other.yaml"))
        await passes()
        assert rig.loops == [first]
        first.ending.set()
        await passes()
        assert not first.is_running
        assert rig.live == ["http://a:1"]

    asyncio.run(rig.run(course))


def test_a_server_under_two_addresses_is_steered_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.boot_ids = {"http://a:1": "boot-1", "http://name:1": "boot-1", "http://b:1": "boot-2"}

    async def course() -> None:
        rig.roster.set("a:1", "b:1", "name:1")
        await passes()
        assert rig.live == ["http://a:1", "http://b:1"]
        rig.roster.set("b:1", "name:1")
        await passes()
        assert rig.live == ["http://b:1", "http://name:1"]
        rig.roster.set("name:1", "b:1", "a:1")
        await passes()
        assert rig.live == ["http://b:1", "http://name:1"]
        rig.boot_ids["http://a:1"] = "boot-3"
        for _ in range(20):
            await passes()
        assert rig.live == ["http://a:1", "http://b:1", "http://name:1"]

    asyncio.run(rig.run(course))
    assert caplog.text.count("the same server as http://a:1; steered once") == 1
    assert caplog.text.count("the same server as http://name:1; steered once") == 1


def test_a_process_that_is_late_says_so(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()

    class Slow(ManualClock):
        async def sleep(self, seconds: float, stop: asyncio.Event) -> None:
            await super().sleep(seconds + 4.0, stop)

    rig.fleet._clock = Slow()

    async def course() -> None:
        rig.roster.set("a:1", "b:1")
        for _ in range(10):
            await asyncio.sleep(0)

    asyncio.run(rig.run(course))
    assert "s late with 2 targets; leases may run out" in caplog.text


class Daemon:
    """A real fleet on fake engines, with the system's clock."""

    def __init__(self, path: Path, timeout_s: float, group: RolloutGroup | None = None) -> None:
        self.group = group
        path.write_text("kind: fixed\nnum_speculative_tokens: 5\npoll_interval_s: 0.2\nlease_s: 1.0\n")
        self.path, self.timeout_s = path, timeout_s
        self.clock, self.exporter, self.roster = SystemClock(), Exporter(), Roster()
        self.fleet = Fleet(self.roster, PolicyFiles(), self._make, self.exporter, self.clock)

    def _make(self, assignment: Assignment, policy: PolicyFile) -> TargetLoop:
        client = HttpClient(assignment.target.url, timeout_s=self.timeout_s)
        observer, actuator = EngineObserver(client, self.clock), HttpActuator(client)
        audit = AuditLog(None, self.clock)
        return TargetLoop(
            assignment.target.url,
            observer,
            actuator,
            policy,
            owner="me",
            clock=self.clock,
            audit=audit,
            exporter=self.exporter,
            group=self.group,
        )

    def looks(self, url: str) -> float:
        return self.exporter.registry.get_sample_value("specctl_tick_seconds_count", {"target": url}) or 0.0


def test_half_of_the_servers_down_or_stuck_do_not_slow_the_others(tmp_path: Path) -> None:
    async def course() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(daemon.fleet.run(stop))
        await asyncio.sleep(4.0)
        counts = [daemon.looks(engine.url) for engine in engines[:4]]
        stuck = [daemon.looks(engine.url) for engine in engines[4:6]]
        stop.set()
        await task
        # 0.2 s apart for 3 s and more, on a busy machine.
        assert min(counts) >= 8
        assert max(stuck) <= 4

    with ExitStack() as stack:
        engines = [stack.enter_context(FakeEngine(seed=i)) for i in range(6)]
        for engine in engines[4:]:
            engine.delay_s = 1.0
        daemon = Daemon(tmp_path / "p.yaml", timeout_s=0.9)
        urls = [engine.url for engine in engines]
        daemon.roster.set(*urls, "127.0.0.1:9", "127.0.0.1:10", policy=daemon.path)
        asyncio.run(course())
        assert [engine.tokens_at(1) for engine in engines[:4]] == [5] * 4


def test_a_target_that_left_keeps_its_table_until_the_lease_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="specctl")

    async def until(condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.05)

    async def course() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(daemon.fleet.run(stop))
        await until(lambda: engine.tokens_at(1) == 5)
        daemon.roster.set(policy=daemon.path)
        await until(lambda: "no target any more" in caplog.text)
        await until(lambda: daemon.looks(engine.url) == 0)
        puts = len(engine.puts)
        assert engine.state is TableState.LIVE
        engine.advance(1.1)
        assert engine.state is TableState.FALLBACK
        assert len(engine.puts) == puts
        stop.set()
        await task

    with FakeEngine(start_tokens=2) as engine:
        daemon = Daemon(tmp_path / "p.yaml", timeout_s=10.0)
        daemon.roster.set(engine.url, policy=daemon.path)
        asyncio.run(course())
    assert "the table stays until its lease ends" in caplog.text


def test_the_first_server_of_a_group_does_not_think_that_it_is_alone(tmp_path: Path) -> None:
    """All of them join before the first one looks."""

    async def course() -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(daemon.fleet.run(stop))
        await asyncio.sleep(1.5)
        stop.set()
        await task

    with FakeEngine() as first, FakeEngine() as second:
        daemon = Daemon(tmp_path / "p.yaml", timeout_s=10.0, group=RolloutGroup())
        for engine in (first, second):
            engine.traffic = None
        daemon.roster.set(first.url, second.url, policy=daemon.path)
        asyncio.run(course())
        assert [engine.tokens_at(1) for engine in (first, second)] == [0, 0]
        assert first.puts
