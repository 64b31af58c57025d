"""What the daemon asks of a source of targets, and of the roster that joins the sources."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from yarl import URL

from specctl.clock import Clock
from specctl.http_client import normalise_target, shown_target

__all__ = ["Assignment", "FixedSource", "Target", "TargetSource", "make_target"]


@dataclass(frozen=True, slots=True)
class Target:
    """One server. ``url`` may hold a password. ``key``: the same for every spelling of its address.
    ``labels``: sorted by name."""

    url: str
    key: str
    labels: tuple[tuple[str, str], ...] = ()

    @property
    def name(self) -> str:
        """For logs and metrics."""
        return shown_target(self.url)


@dataclass(frozen=True, slots=True)
class Assignment:
    """A target and the policy that its labels select. ``group``: whose servers change one after another."""

    target: Target
    policy: Path
    group: str


class TargetSource(Protocol):
    """Where targets come from. Sources with equal ``name`` tell the same."""

    name: str
    interval_s: float
    """Seconds between two reads; infinite for a source that never changes."""

    async def read(self) -> tuple[Target, ...]:
        """Raises TargetsError when the source cannot tell, which is not the same as no targets."""

    async def changed(self, clock: Clock, stop: asyncio.Event) -> None:
        """Returns when another read may find other targets, or ``stop`` is set."""
        await clock.sleep(self.interval_s, stop)

    async def close(self) -> None:
        """Releases what a source holds."""
        return None


class FixedSource(TargetSource):
    """Targets that are named one by one, on the command line or in a targets file. Never changes."""

    interval_s = float("inf")

    def __init__(self, name: str, targets: Sequence[Target]) -> None:
        self.name = name
        self._targets = tuple(targets)

    async def read(self) -> tuple[Target, ...]:
        return self._targets

    async def changed(self, clock: Clock, stop: asyncio.Event) -> None:
        await stop.wait()


def make_target(url: str, labels: Mapping[str, str] | None = None) -> Target:
    """Raises TargetError when ``url`` is neither ``host:port`` nor a URL."""
    url = normalise_target(url)
    parsed = URL(url)
    key = f"{parsed.scheme}://{parsed.host}:{parsed.port}{parsed.path.rstrip('/')}"
    return Target(url, key, tuple(sorted((labels or {}).items())))
