"""Targets that are named one by one: on the command line, or in a targets file."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from specctl.clock import Clock
from specctl.targets.base import Target

__all__ = ["FixedSource"]


class FixedSource:
    """Never changes."""

    interval_s = float("inf")

    def __init__(self, name: str, targets: Sequence[Target]) -> None:
        self.name = name
        self._targets = tuple(targets)

    async def read(self) -> tuple[Target, ...]:
        return self._targets

    async def changed(self, clock: Clock, stop: asyncio.Event) -> None:
        await stop.wait()

    async def close(self) -> None:
        return None
