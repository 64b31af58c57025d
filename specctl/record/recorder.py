"""Looks at one server every so often and writes what it reports. Never changes anything there."""

from __future__ import annotations

import asyncio
import logging
import math

from specctl import __version__
from specctl.clock import Clock, iso_utc
from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable, TableState
from specctl.contract.telemetry import Telemetry, TelemetryCell
from specctl.engine_api.client import EngineClient
from specctl.engine_api.deltas import CellKey, cell_key
from specctl.engine_api.stock_metrics import LoadCounters, parse_stock_metrics
from specctl.errors import AccessRefused, ContractError, NotSteered, OtherContract, TargetError
from specctl.plain_text import plain_text
from specctl.record.lines import CapabilitiesLine, End, EndReason, Header, Reading, Unreachable
from specctl.record.writer import LogWriter

__all__ = ["Recorder"]

logger = logging.getLogger(__name__)


class LogFull(Exception):
    """The next line would take the log over its bound."""


class Recorder:
    """One recording. ``reach`` first: it finds out whether there is anything to record."""

    def __init__(self, client: EngineClient, clock: Clock, *, every_s: float) -> None:
        self._client = client
        self._clock = clock
        self._every_s = every_s
        self._capabilities: Capabilities | None = None
        self._is_known = False
        self._cells: dict[CellKey, TelemetryCell] = {}
        self._table: tuple[int, TableState] | None = None
        self._trouble: str | None = None
        self._why_load_alone: str | None = None
        self.readings = 0

    async def reach(self) -> None:
        """Raises TargetError and ContractError where this is no server that can be read, or one that does not
        tell its load, without which a log is no trace."""
        self._capabilities = await self._read_capabilities()
        await self._read_load()

    async def run(self, writer: LogWriter, stop: asyncio.Event, *, for_s: float | None) -> EndReason:
        """Until ``stop`` is set, ``for_s`` seconds have passed, or the log is full. Raises SpecctlError."""
        self._writer = writer
        self._started_s = self._clock.now_s()
        self._write(
            Header(
                specctl_version=__version__,
                target=self._client.target,
                every_s=self._every_s,
                utc=iso_utc(self._clock.utc()),
            )
        )
        reason: EndReason
        try:
            reason = await self._looks(stop, for_s)
        except LogFull:
            reason = "size"
        writer.write(End(time_s=self._now_s(), reason=reason), is_last=True)
        return reason

    async def _looks(self, stop: asyncio.Event, for_s: float | None) -> EndReason:
        due_s = 0.0
        while not stop.is_set():
            await self._look()
            now_s = self._now_s()
            # Looks that a slow one held up are left out.
            due_s += self._every_s * max(1, math.ceil((now_s - due_s) / self._every_s))
            if for_s is not None and due_s > for_s:
                await self._clock.sleep(for_s - now_s, stop)
                return "asked" if stop.is_set() else "time"
            await self._clock.sleep(due_s - now_s, stop)
        return "asked"

    async def _look(self) -> None:
        try:
            await self._tell_capabilities()
            reading = await self._reading()
        except (TargetError, ContractError) as error:
            self._failed(str(error))
            return
        self._trouble = None
        self._write(reading)
        self.readings += 1

    def _failed(self, words: str) -> None:
        self._is_known = False
        if words != self._trouble:
            logger.warning("%s", words)
            self._write(Unreachable(time_s=self._now_s(), reason=plain_text(words, 500)))
        self._trouble = words

    async def _tell_capabilities(self) -> None:
        """At the start, and after looks that failed: another process may answer now."""
        if self._is_known:
            return
        before = self._capabilities
        self._capabilities = await self._read_capabilities()
        self._is_known = True
        self._cells, self._table = {}, None
        boot_id = None if before is None else before.boot_id
        has_restarted = self._capabilities is None or self._capabilities.boot_id != boot_id
        self._write(
            CapabilitiesLine(
                time_s=self._now_s(),
                capabilities=self._capabilities,
                restarted_from=boot_id if has_restarted else None,
            )
        )

    async def _read_capabilities(self) -> Capabilities | None:
        """None without the plugin, and where it steers nothing: then there is the load alone."""
        why = f"{self._client.target}: without the specctl plugin"
        try:
            capabilities = await self._client.capabilities()
        except (NotSteered, OtherContract) as error:
            capabilities, why = None, str(error)
        if capabilities is None and why != self._why_load_alone:
            logger.warning("%s: the load is recorded, costs and acceptance are not", why)
            self._why_load_alone = why
        return capabilities

    async def _read_load(self) -> LoadCounters:
        """Raises TargetError."""
        text = await self._client.metrics_text()
        try:
            return parse_stock_metrics(text).load
        except TargetError as error:
            raise TargetError(f"{self._client.target}: {error}") from error

    async def _reading(self) -> Reading:
        gaps: list[str] = []
        telemetry = await self._read_telemetry(gaps)
        time_s = self._now_s()
        load: LoadCounters | None = None
        try:
            load = await self._read_load()
        except TargetError as error:
            gaps.append(str(error))
            if telemetry is None:
                raise
        return Reading(
            time_s=time_s,
            telemetry=None if telemetry is None else self._changed(telemetry),
            load=load,
            table=None if telemetry is None else await self._changed_table(telemetry, gaps),
            gaps=tuple(gaps),
        )

    async def _read_telemetry(self, gaps: list[str]) -> Telemetry | None:
        if self._capabilities is None:
            return None
        try:
            telemetry = await self._client.telemetry()
        except AccessRefused:
            raise
        except ContractError as error:
            gaps.append(str(error))
            return None
        if telemetry.boot_id != self._capabilities.boot_id:
            logger.warning("%s: the engine restarted", self._client.target)
            self._is_known = False
            await self._tell_capabilities()
        return telemetry

    async def _changed_table(self, telemetry: Telemetry, gaps: list[str]) -> AppliedTable | None:
        """None while it is the one of the last reading."""
        if self._table == (telemetry.table_version, telemetry.table_state):
            return None
        try:
            table = await self._client.table()
        except (TargetError, ContractError) as error:
            gaps.append(str(error))
            return None
        self._table = table.version, table.state
        return table

    def _changed(self, telemetry: Telemetry) -> Telemetry:
        """With the cells that gained something since the last reading."""
        cells = {cell_key(cell): cell for cell in telemetry.cells}
        fresh = tuple(cell for key, cell in cells.items() if self._cells.get(key) != cell)
        self._cells = cells
        return telemetry.model_copy(update={"cells": fresh})

    def _write(self, line: Header | CapabilitiesLine | Reading | Unreachable) -> None:
        if not self._writer.write(line):
            raise LogFull

    def _now_s(self) -> float:
        return max(self._clock.now_s() - self._started_s, 0.0)
