from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.clock import ManualClock

from specctl.clock import Clock
from specctl.errors import TargetsError
from specctl.targets.base import FixedSource, Target, make_target
from specctl.targets.file import Loaded, Rule, TargetsFile
from specctl.targets.roster import LiveRoster

ALL = Rule((), Path("all.yaml"))


class Polled:
    """Tells ``urls``, or fails with ``error``."""

    interval_s = 5.0

    def __init__(self, name: str, *urls: str) -> None:
        self.name = name
        self.urls = list(urls)
        self.error: Exception | None = None
        self.reads = 0
        self.is_closed = False

    async def read(self) -> tuple[Target, ...]:
        self.reads += 1
        if self.error is not None:
            raise self.error
        return tuple(make_target(url) for url in self.urls)

    async def changed(self, clock: Clock, stop: asyncio.Event) -> None:
        await clock.sleep(self.interval_s, stop)

    async def close(self) -> None:
        self.is_closed = True


class File(TargetsFile):
    """A targets file whose sources are set by hand."""

    def __init__(self, *sources: Polled | FixedSource) -> None:
        self.refusal = None
        self.value = Loaded((ALL,), sources, frozen=False)
        self.next: tuple[Polled | FixedSource, ...] | None = None

    async def refresh(self) -> bool:
        if self.next is None:
            return False
        self.value, self.next = self.value._replace(sources=self.next), None
        return True


def fixed(name: str, *urls: str, **labels: str) -> FixedSource:
    return FixedSource(name, [make_target(url, labels) for url in urls])


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


def urls(roster: LiveRoster) -> list[str]:
    return [assignment.target.url for assignment in roster.assignments()]


async def running(roster: LiveRoster, course: Callable[[], object]) -> None:
    stop = asyncio.Event()
    task = asyncio.create_task(roster.run(stop))
    try:
        await course()  # type: ignore[misc]
    finally:
        stop.set()
        await task


def test_one_server_of_two_sources_is_one_target_and_the_first_source_wins() -> None:
    async def course() -> None:
        first = fixed("command line", "http://H:80/", "h2:8000")
        roster = LiveRoster(
            first, [ALL], File(fixed("file", "h", "h2:8000/", "h2:8001", x="y")), ManualClock()
        )
        await roster.read_fixed()
        assert urls(roster) == ["http://H:80", "http://h2:8000", "http://h2:8001"]
        assert roster.assignments()[1].target.labels == ()

    asyncio.run(course())


def test_the_first_rule_wins_and_a_target_without_one_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def course() -> None:
        rules = [
            Rule((("tier", "a"),), Path("a.yaml")),
            Rule((("model", "m"), ("tier", "b")), Path("b.yaml")),
            Rule((("model", "m"),), Path("c.yaml")),
        ]
        source = FixedSource(
            "f",
            [
                make_target("h1:1", {"tier": "a", "model": "m"}),
                make_target("h2:1", {"tier": "b", "model": "m", "zone": "z"}),
                make_target("h3:1", {"model": "m"}),
                make_target("h4:1", {"tier": "b"}),
            ],
        )
        roster = LiveRoster(source, rules, None, ManualClock())
        await roster.read_fixed()
        for _ in range(3):
            chosen = {a.target.url: a.policy.stem for a in roster.assignments()}
        assert chosen == {"http://h1:1": "a", "http://h2:1": "b", "http://h3:1": "c"}
        assert caplog.text.count("http://h4:1: refused: no policy rule matches its labels (tier=b)") == 1

    asyncio.run(course())


def test_a_failing_source_keeps_its_last_targets_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="specctl")
    source = Polled("dns", "h1:1", "h2:1")
    roster = LiveRoster(fixed("command line"), [ALL], File(source), ManualClock())

    async def course() -> None:
        await until(lambda: len(urls(roster)) == 2)
        for error in (TargetsError("dns name: cannot be resolved"), RuntimeError("a bug")):
            source.error = error
            await until(lambda: bool(roster._failing))
            reads = source.reads
            await until(lambda reads=reads: source.reads > reads + 3)  # type: ignore[misc]
            assert len(urls(roster)) == 2
            source.error = None
            await until(lambda: not roster._failing)
        source.urls = ["h2:1", "h3:1"]
        await until(lambda: urls(roster) == ["http://h2:1", "http://h3:1"])

    asyncio.run(running(roster, course))
    assert caplog.text.count("dns name: cannot be resolved; the last 2 target(s) stay") == 1
    assert caplog.text.count("answers again, 2 target(s)") == 2
    assert source.is_closed


def test_a_bug_in_following_a_source_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Polled):
        async def changed(self, clock: Clock, stop: asyncio.Event) -> None:
            raise IndexError("a bug")

    source, other = Broken("pods", "h1:1"), Polled("dns", "h2:1")
    roster = LiveRoster(fixed("command line"), [ALL], File(source, other), ManualClock())

    async def course() -> None:
        await until(lambda: source.reads > 3 and other.reads > 3)
        assert len(urls(roster)) == 2

    asyncio.run(running(roster, course))
    assert "its changes cannot be followed now" in caplog.text
    assert source.is_closed


def test_an_edited_entry_keeps_its_targets_until_the_new_one_has_answered() -> None:
    old, new = Polled("dns x", "h1:1"), Polled("dns y", "h1:1", "h2:1")
    new.error = TargetsError("not yet")
    file = File(fixed("urls", "u1:1"), old)
    roster = LiveRoster(fixed("command line"), [ALL], file, ManualClock())

    async def course() -> None:
        await until(lambda: urls(roster) == ["http://u1:1", "http://h1:1"])
        seen: list[list[str]] = []
        file.next = (fixed("urls, edited", "u1:1", "u2:1"), new)
        await until(lambda: seen.append(urls(roster)) or new.reads > 2)  # type: ignore[func-returns-value]
        assert all({"http://u1:1", "http://h1:1"} <= set(one) for one in seen)
        assert "http://u2:1" in seen[-1]
        new.error = None
        await until(lambda: "http://h2:1" in urls(roster))
        assert old.is_closed
        file.next = (new,)
        await until(lambda: urls(roster) == ["http://h1:1", "http://h2:1"])

    asyncio.run(running(roster, course))


def test_a_source_that_hangs_holds_up_neither_the_others_nor_the_end() -> None:
    class Hanging(Polled):
        async def read(self) -> tuple[Target, ...]:
            await asyncio.Event().wait()
            return ()

    stuck, quick = Hanging("stuck"), Polled("quick", "h1:1")
    roster = LiveRoster(fixed("command line"), [ALL], File(stuck, quick), ManualClock())

    async def course() -> None:
        await until(lambda: urls(roster) == ["http://h1:1"] and quick.reads > 3)

    asyncio.run(asyncio.wait_for(running(roster, course), 5))
    assert stuck.is_closed
