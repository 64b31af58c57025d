"""A clock that moves when told."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta


class ManualClock:
    def __init__(self) -> None:
        self.time_s = 1000.0

    def advance(self, seconds: float) -> None:
        self.time_s += seconds

    def now_s(self) -> float:
        return self.time_s

    def utc(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.time_s)

    async def sleep(self, seconds: float, stop: asyncio.Event) -> None:
        self.time_s += seconds
        await asyncio.sleep(0)
