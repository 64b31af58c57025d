"""Time, injected: tests and replays bring their own clock and never sleep."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["Clock", "SystemClock", "iso_utc"]


class Clock(Protocol):
    def now_s(self) -> float:
        """Monotonic seconds."""

    def utc(self) -> datetime:
        """Wall-clock time, for records only."""

    async def sleep(self, seconds: float, stop: asyncio.Event) -> None:
        """Return after ``seconds``, or as soon as ``stop`` is set."""


class SystemClock:
    def now_s(self) -> float:
        return time.monotonic()

    def utc(self) -> datetime:
        return datetime.now(UTC)

    async def sleep(self, seconds: float, stop: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(max(seconds, 0.0)):
                await stop.wait()
        except TimeoutError:
            return


def iso_utc(moment: datetime) -> str:
    """ISO 8601 in UTC with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
