"""The targets of every source as one list: each server once, each with the policy that its labels select."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from specctl.clock import Clock
from specctl.errors import TargetsError
from specctl.plain_text import plain_text
from specctl.targets.base import Assignment, Target, TargetSource
from specctl.targets.file import Rule, TargetsFile

__all__ = ["LiveRoster"]

logger = logging.getLogger(__name__)

FILE_CHECK_S = 1.0
FAILED_INTERVAL_S = 60.0


class LiveRoster:
    """Keeps what each source answered last, as long as the source itself is named.

    Args:
        fixed: the command line's targets; they win over the same servers in the file.
        rules: for all targets, after the file's own rules.
    """

    def __init__(
        self, fixed: TargetSource, rules: Sequence[Rule], file: TargetsFile | None, clock: Clock
    ) -> None:
        self._fixed = fixed
        self._rules = tuple(rules)
        self.file = file
        self._clock = clock
        self._known: dict[str, tuple[Target, ...]] = {}
        self._failing: dict[str, str] = {}
        self._unmatched: set[str] = set()
        # Of sources that a new file no longer names: they stay until the new sources have answered, as an
        # edited entry is a new source.
        self._leaving: tuple[Target, ...] = ()

    @property
    def is_frozen(self) -> bool:
        """The targets file says that nothing is to be changed."""
        return self.file is not None and self.file.value.frozen

    def assignments(self) -> Sequence[Assignment]:
        """Each server once; those without a policy are left out. Cheap."""
        rules = (*(self.file.value.rules if self.file is not None else ()), *self._rules)
        seen: dict[str, Assignment] = {}
        unmatched: dict[str, Target] = {}
        named = (target for source in self._sources() for target in self._known.get(source.name, ()))
        for target in (*named, *self._leaving):
            if target.key in seen:
                continue
            rule = next((rule for rule in rules if rule.matches(target)), None)
            if rule is None:
                unmatched[target.key] = target
            else:
                seen[target.key] = Assignment(target, rule.policy, rule.group)
        for key in unmatched.keys() - seen.keys() - self._unmatched:
            self._refuse(unmatched[key])
        self._unmatched = unmatched.keys() - seen.keys()
        return tuple(seen.values())

    async def run(self, stop: asyncio.Event) -> None:
        """Reads every source at its own pace, and the file when it changes, until ``stop`` is set."""
        readers: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                wanted = {source.name: source for source in self._sources()}
                for name in readers.keys() - wanted.keys():
                    readers.pop(name).cancel()
                    self._leaving += self._known.pop(name, ())
                    self._failing.pop(name, None)
                for name in wanted.keys() - readers.keys():
                    readers[name] = group.create_task(self._follow(wanted[name], stop))
                if wanted.keys() <= self._known.keys():
                    self._leaving = ()
                await self._clock.sleep(FILE_CHECK_S, stop)
                if self.file is not None and await self.file.refresh():
                    await self.read_fixed()
            for reader in readers.values():
                reader.cancel()

    async def read_fixed(self) -> None:
        """What needs no waiting, so that the first look at it is at once."""
        for source in self._sources():
            if source.interval_s == float("inf"):
                self._known[source.name] = await source.read()

    async def _follow(self, source: TargetSource, stop: asyncio.Event) -> None:
        """Until cancelled: a read in progress is not waited for."""
        try:
            while not stop.is_set():
                await self._read(source)
                try:
                    await source.changed(self._clock, stop)
                except Exception:
                    # A bug in one source must not end the control of every target.
                    logger.exception("%s: its changes cannot be followed now", source.name)
                    await self._clock.sleep(min(source.interval_s, FAILED_INTERVAL_S), stop)
        finally:
            await source.close()

    async def _read(self, source: TargetSource) -> None:
        try:
            targets = await source.read()
        except TargetsError as error:
            self._failed(source.name, str(error))
            return
        except Exception as error:
            # A bug in one source must not end the control of every target.
            logger.exception("%s: this read failed", source.name)
            self._failed(source.name, f"{source.name}: {type(error).__name__}")
            return
        if self._failing.pop(source.name, None) is not None:
            logger.info("targets: answers again, %d target(s)", len(targets))
        self._known[source.name] = targets

    def _failed(self, name: str, words: str) -> None:
        if self._failing.get(name) != words:
            known = len(self._known.get(name, ()))
            logger.error("targets: %s; the last %d target(s) stay", words, known)
        self._failing[name] = words

    def _refuse(self, target: Target) -> None:
        labels = plain_text(", ".join(f"{name}={value}" for name, value in target.labels) or "none")
        logger.error("%s: refused: no policy rule matches its labels (%s)", target.name, labels)

    def _sources(self) -> tuple[TargetSource, ...]:
        return (self._fixed, *(self.file.value.sources if self.file is not None else ()))
