"""Actuator that changes nothing."""

from __future__ import annotations

from specctl.actuate.base import Actuator, DesiredTable
from specctl.contract.table import AppliedTable

__all__ = ["DryRunActuator"]


class DryRunActuator:
    """Reads through another actuator, and never writes."""

    is_dry_run = True

    def __init__(self, reader: Actuator) -> None:
        self._reader = reader

    async def apply(self, desired: DesiredTable) -> None:
        return None

    async def observe(self) -> AppliedTable:
        return await self._reader.observe()
