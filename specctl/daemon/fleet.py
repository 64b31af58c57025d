"""Many targets in one process: they come and go while it runs, policy files change, all stop together."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from specctl.clock import Clock
from specctl.daemon.loop import TargetLoop
from specctl.metrics.exporter import Exporter
from specctl.policy.loader import PolicyFile, PolicyFiles
from specctl.targets.base import Assignment
from specctl.targets.roster import LiveRoster
from specctl.watch.board import Board

__all__ = ["Fleet", "stop_on_signals"]

logger = logging.getLogger(__name__)

CHECK_S = 1.0
SPREAD_S = 1.0
LATE_S = 1.0
LATE_INTERVAL_S = 60.0
DOUBLE_S = 600.0
"""A name may move to another server: what was one server is polled again after this."""


@dataclass(frozen=True, slots=True)
class _Running:
    assignment: Assignment
    loop: TargetLoop
    stop: asyncio.Event
    task: asyncio.Task[None]


class Fleet:
    """One loop for each target of the roster. One that left the roster is stopped as the daemon is."""

    def __init__(
        self,
        roster: LiveRoster,
        policies: PolicyFiles,
        make_loop: Callable[[Assignment, PolicyFile], TargetLoop],
        gauge: Exporter,
        clock: Clock,
        board: Board | None = None,
    ) -> None:
        """``board``: where page and top read; None: nobody does."""
        self._board = board or Board("", clock)
        self._roster = roster
        self._policies = policies
        self._make_loop = make_loop
        self._gauge = gauge
        self._clock = clock
        self._running: dict[str, _Running] = {}
        self._ending: dict[str, _Running] = {}
        self._late_warned_s = float("-inf")
        # By key: the address that is steered instead, and until when that is taken for granted.
        self._doubles: dict[str, tuple[str, float]] = {}

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(running.assignment.target.name for running in self._running.values())

    def loops_of(self, policy: Path | None) -> list[TargetLoop]:
        """The loops that a policy file decides on; None: all of them."""
        running = self._running.values()
        return [one.loop for one in running if policy is None or one.assignment.policy == policy]

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop`` is set."""
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                try:
                    self._reconcile(group)
                except Exception:
                    # A bug, or a policy file that just went: the targets that run go on.
                    logger.exception("the targets could not be brought up to date")
                await self._sleep(stop)
                await self._policies.refresh()
                self._gauge.policy(is_valid=self._policies.is_valid)
            for running in self._running.values():
                running.stop.set()
        logger.info("stopped")

    async def _sleep(self, stop: asyncio.Event) -> None:
        """Says when polls come late because there is more to do than one core can."""
        before_s = self._clock.now_s()
        await self._clock.sleep(CHECK_S, stop)
        now_s = self._clock.now_s()
        late_s = now_s - before_s - CHECK_S
        if late_s > LATE_S and now_s >= self._late_warned_s + LATE_INTERVAL_S:
            self._late_warned_s = now_s
            words = "this process is %.1f s late with %d targets; leases may run out: use more daemons"
            logger.warning(words, late_s, len(self._running))

    def _reconcile(self, group: asyncio.TaskGroup) -> None:
        wanted = {assignment.target.key: assignment for assignment in self._roster.assignments()}
        self._ending = {key: old for key, old in self._ending.items() if not old.task.done()}
        self._find_doubles(wanted)
        for key, running in list(self._running.items()):
            if key in self._doubles or not _is_same(wanted.get(key), running.assignment):
                self._end(key, is_gone=key not in wanted)
        new = wanted.keys() - self._running.keys() - self._ending.keys() - self._doubles.keys()
        in_order = [key for key in wanted if key in new]
        for i, key in enumerate(in_order):
            # Polls spread over the second: all at once would wait for each other.
            self._start(group, wanted[key], SPREAD_S * i / len(in_order))
        self._gauge.targets(len(self._running))
        self._board.roster_read()

    def _start(self, group: asyncio.TaskGroup, assignment: Assignment, delay_s: float) -> None:
        stop = asyncio.Event()
        loop = self._make_loop(assignment, self._policies.get(assignment.policy))
        task = group.create_task(self._run(assignment.target.name, loop, stop, delay_s))
        self._running[assignment.target.key] = _Running(assignment, loop, stop, task)

    async def _run(self, url: str, loop: TargetLoop, stop: asyncio.Event, delay_s: float) -> None:
        if delay_s:
            await self._clock.sleep(delay_s, stop)
        try:
            await loop.run(stop)
        except Exception:
            # A bug in one loop must not end the control of every target. It stays on the board, so that
            # /healthz misses its polls.
            logger.exception("%s: its control has ended", url)
        else:
            self._board.forget(url)
        self._gauge.forget(url)

    def _end(self, key: str, *, is_gone: bool) -> None:
        running = self._running.pop(key)
        running.stop.set()
        self._ending[key] = running
        if is_gone:
            logger.info("%s: no target any more", running.assignment.target.name)

    def _find_doubles(self, wanted: Collection[str]) -> None:
        """One server under two addresses is known by its ``boot_id``; the address that came first stays."""
        firsts: dict[str, str] = {}
        now_s = self._clock.now_s()
        for key, running in self._running.items():
            boot_id = running.loop.boot_id
            if boot_id is None or key in self._doubles:
                continue
            first = firsts.setdefault(boot_id, key)
            if first != key and key in wanted:
                self._doubles[key] = first, now_s + DOUBLE_S
                logger.warning(
                    "%s: the same server as %s; steered once", running.assignment.target.name, first
                )
        self._doubles = {
            key: (first, until_s)
            for key, (first, until_s) in self._doubles.items()
            if key in wanted and first in wanted and now_s < until_s
        }


def _is_same(wanted: Assignment | None, present: Assignment) -> bool:
    """Labels may change without a new start, as long as policy and group stay."""
    return wanted is not None and (wanted.policy, wanted.group) == (present.policy, present.group)


def stop_on_signals(stop: asyncio.Event) -> None:
    """SIGTERM and SIGINT end the daemon after the poll in progress."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
