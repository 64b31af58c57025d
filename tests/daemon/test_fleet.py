"""Many targets in one process: they come and go, and none holds up another."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from fakes.clock import ManualClock
from fakes.engine import FakeEngine

from specctl.clock import SystemClock
from specctl.contract.table import TableState
from specctl.core.rollout import RolloutGroup
from specctl.daemon.audit import AuditLog
from specctl.daemon.context import LoopContext
from specctl.daemon.fleet import Fleet
from specctl.daemon.loop import TargetLoop
from specctl.daemon.reporter import Reporter
from specctl.engine_api.client import EngineClient
from specctl.engine_api.observer import EngineObserver
from specctl.http_client import HttpClient
from specctl.metrics.exporter import Exporter
from specctl.policy.loader import PolicyFile, PolicyFiles
from specctl.targets.base import Assignment, make_target

POLICY = Path("policy.yaml")


class Roster:
    def __init__(self) -> None:
        self.now: list[Assignment] = []

    def assignments(self) -> list[Assignment]:
        return self.now

    def set(self, *urls: str, policy: Path = POLICY, group: str = "all") -> None:
        self.now = [Assignment(make_target(url), policy, group) for url in urls]


class Loop:
    """Stands for a target's loop. ``ending``: it ends only when this is set."""

    def __init__(self, url: str, boot_id: str | None) -> None:
        self.url, self.boot_id = url, boot_id
        self.acting_frozen: bool | None = None
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

    async def refresh(self) -> None:
        return None


class FakeFleet:
    """A fleet of loops that only wait, on virtual time."""

    def __init__(self, clock: ManualClock | None = None) -> None:
        self.roster, self.exporter, self.policies = Roster(), Exporter(), Policies()
        self.loops: list[Loop] = []
        self.boot_ids: dict[str, str] = {}
        self.fleet = Fleet(self.roster, self.policies, self._make, self.exporter, clock or ManualClock())

    def _make(self, assignment: Assignment, policy: Path) -> Loop:
        url = assignment.target.url
        self.loops.append(Loop(url, self.boot_ids.get(url)))
        return self.loops[-1]

    @property
    def live(self) -> list[str]:
        return sorted(loop.url for loop in self.loops if loop.is_running)

    def metric(self, name: str) -> float | None:
        return self.exporter.registry.get_sample_value(name)

    async def run(self, course: Callable[[], Awaitable[None]]) -> None:
        stop = asyncio.Event()
        task = asyncio.create_task(self.fleet.run(stop))
        try:
            await course()
        finally:
            stop.set()
            await task
        assert self.live == []


async def passes() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


def test_targets_come_and_go() -> None:
    async def course() -> None:
        for now in (["a:1"], ["a:1", "b:1", "c:1"], ["c:1"], [], ["a:1", "bug:1"], ["a:1"]):
            fake.roster.set(*now)
            await passes()
            assert fake.live == [f"http://{url}" for url in now]
            assert fake.metric("specctl_watched_targets") == len(now)
            assert sorted(fake.fleet.targets) == fake.live

    fake = FakeFleet()
    asyncio.run(fake.run(course))
    assert len(fake.loops) == 5


@pytest.mark.parametrize("change", [{"policy": Path("other.yaml")}, {"group": "other"}])
def test_another_policy_is_another_loop_after_the_first_has_ended(change: dict[str, object]) -> None:
    async def course() -> None:
        fake.roster.set("a:1")
        await passes()
        first = fake.loops[0]
        first.ending.clear()
        fake.roster.set("a:1", **change)  # type: ignore[arg-type]
        await passes()
        assert fake.loops == [first]
        first.ending.set()
        await passes()
        assert not first.is_running
        assert fake.live == ["http://a:1"]

    fake = FakeFleet()
    asyncio.run(fake.run(course))


def test_a_server_under_two_addresses_is_steered_once(caplog: pytest.LogCaptureFixture) -> None:
    async def course() -> None:
        fake.roster.set("a:1", "b:1", "name:1")
        await passes()
        assert fake.live == ["http://a:1", "http://b:1"]
        fake.roster.set("b:1", "name:1")
        await passes()
        assert fake.live == ["http://b:1", "http://name:1"]
        fake.roster.set("name:1", "b:1", "a:1")
        await passes()
        assert fake.live == ["http://b:1", "http://name:1"]
        fake.boot_ids["http://a:1"] = "boot-3"
        for _ in range(20):
            await passes()
        assert fake.live == ["http://a:1", "http://b:1", "http://name:1"]

    fake = FakeFleet()
    fake.boot_ids = {"http://a:1": "boot-1", "http://name:1": "boot-1", "http://b:1": "boot-2"}
    asyncio.run(fake.run(course))
    assert caplog.text.count("the same server as http://a:1; steered once") == 1
    assert caplog.text.count("the same server as http://name:1; steered once") == 1


def test_a_process_that_is_late_says_so(caplog: pytest.LogCaptureFixture) -> None:
    class Slow(ManualClock):
        async def sleep(self, seconds: float, stop: asyncio.Event) -> None:
            await super().sleep(seconds + 4.0, stop)

    async def course() -> None:
        fake.roster.set("a:1", "b:1")
        for _ in range(10):
            await asyncio.sleep(0)

    fake = FakeFleet(Slow())
    asyncio.run(fake.run(course))
    assert "s late with 2 targets; leases may run out" in caplog.text


def test_whether_every_policy_file_is_the_one_in_force_is_a_metric() -> None:
    async def course() -> None:
        for is_valid in (True, False, True):
            fake.policies.is_valid = is_valid
            await passes()
            assert fake.metric("specctl_policy_valid") == is_valid

    fake = FakeFleet()
    asyncio.run(fake.run(course))


class Daemon:
    """A real fleet on fake engines, with the system's clock."""

    def __init__(self, path: Path, timeout_s: float = 10.0, group: RolloutGroup | None = None) -> None:
        self.path, self.timeout_s, self.group = path, timeout_s, group
        self.write(5)
        self.clock, self.exporter, self.roster = SystemClock(), Exporter(), Roster()
        self.context = LoopContext("me", self.clock)
        self.fleet = Fleet(self.roster, PolicyFiles(), self._make, self.exporter, self.clock)

    def write(self, tokens: object) -> None:
        text = f"kind: fixed\nnum_speculative_tokens: {tokens}\npoll_interval_s: 0.2\nlease_s: 3\n"
        self.path.write_text(text)

    def _make(self, assignment: Assignment, policy: PolicyFile) -> TargetLoop:
        url = assignment.target.url
        client = EngineClient(HttpClient(url, timeout_s=self.timeout_s))
        observer = EngineObserver(client, self.clock)
        reporter = Reporter(url, "me", AuditLog(None, self.clock), self.exporter)
        return TargetLoop(url, observer, client, policy, reporter, self.context, self.group)

    def metric(self, name: str, **labels: str) -> float | None:
        return self.exporter.registry.get_sample_value(name, labels)

    def polls(self, url: str) -> float:
        return self.metric("specctl_tick_seconds_count", target=url) or 0.0

    def run(self, course: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            stop = asyncio.Event()
            task = asyncio.create_task(self.fleet.run(stop))
            try:
                await course()
            finally:
                stop.set()
                await task

        asyncio.run(whole())


async def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)


def test_servers_that_are_down_stuck_or_lying_do_not_slow_the_others(tmp_path: Path) -> None:
    async def course() -> None:
        await asyncio.sleep(4.0)
        counts = [daemon.polls(engine.url) for engine in healthy]
        # 0.2 s apart for 3 s and more, on a busy machine.
        assert min(counts) >= 8
        assert daemon.polls(stuck.url) <= 4
        assert [engine.tokens_at(1) for engine in healthy] == [5] * 3
        assert all(engine.state is TableState.LIVE for engine in healthy)

    with ExitStack() as stack:
        engines = [stack.enter_context(FakeEngine(seed=i)) for i in range(5)]
        *healthy, stuck, liar = engines
        stuck.delay_s = 1.0
        liar.mangle["/specctl/v1/telemetry"] = lambda raw: b'{"cells":[' + b"{}," * 20_000 + b"{}]}"
        daemon = Daemon(tmp_path / "p.yaml", timeout_s=0.9)
        urls = [engine.url for engine in engines]
        daemon.roster.set(*urls, "127.0.0.1:9", "127.0.0.1:10", policy=daemon.path)
        daemon.run(course)


def test_a_target_that_left_is_stopped_and_forgotten(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="specctl")

    async def course() -> None:
        await until(lambda: engine.tokens_at(1) == 5 and daemon.polls(engine.url) > 0)
        daemon.roster.set(policy=daemon.path)
        await until(lambda: daemon.polls(engine.url) == 0)
        assert daemon.metric("specctl_target_up", target=engine.url) is None
        assert (engine.tokens_at(1), engine.lease_s) == (2, None)
        puts = len(engine.puts)
        await asyncio.sleep(0.5)
        assert len(engine.puts) == puts
        daemon.roster.set(engine.url, policy=daemon.path)
        await until(lambda: engine.tokens_at(1) == 5)

    with FakeEngine(start_tokens=2) as engine:
        daemon = Daemon(tmp_path / "p.yaml")
        daemon.roster.set(engine.url, policy=daemon.path)
        daemon.run(course)
        assert (engine.tokens_at(1), engine.lease_s) == (2, None)
    assert "no target any more" in caplog.text


def test_a_policy_file_is_read_again_and_a_bad_one_refused(tmp_path: Path) -> None:
    async def course() -> None:
        await until(lambda: engine.tokens_at(1) == 5)
        daemon.write("many")
        await until(lambda: daemon.metric("specctl_policy_valid") == 0)
        assert engine.tokens_at(1) == 5
        daemon.write(3)
        await until(lambda: engine.tokens_at(1) == 3)
        await until(lambda: daemon.metric("specctl_policy_valid") == 1)

    with FakeEngine() as engine:
        daemon = Daemon(tmp_path / "p.yaml")
        daemon.roster.set(engine.url, policy=daemon.path)
        daemon.run(course)


def test_the_first_server_of_a_group_does_not_take_itself_for_alone(tmp_path: Path) -> None:
    """All of them join before the first one polls; none has the traffic that a trial needs."""

    async def course() -> None:
        await until(lambda: bool(first.puts))
        await asyncio.sleep(0.5)
        assert [engine.tokens_at(1) for engine in (first, second)] == [0, 0]

    with FakeEngine() as first, FakeEngine() as second:
        daemon = Daemon(tmp_path / "p.yaml", group=RolloutGroup())
        for engine in (first, second):
            engine.traffic = None
        daemon.roster.set(first.url, second.url, policy=daemon.path)
        daemon.run(course)
