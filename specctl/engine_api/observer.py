"""Observer of one server: the plugin's routes where they can be used, /metrics in any case."""

from __future__ import annotations

from specctl.clock import Clock
from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable
from specctl.contract.telemetry import Telemetry
from specctl.engine_api.client import EngineClient
from specctl.engine_api.deltas import CounterReset, Gains, TelemetryGains, levels, stock_delta
from specctl.engine_api.stock_metrics import StockCounters, parse_stock_metrics
from specctl.errors import AccessRefused, ContractError, NotSteered, OtherContract, TargetError
from specctl.types import Observation, StockDelta

__all__ = ["EngineObserver"]

# With the plugin, /metrics only adds what the telemetry lacks; rendering it costs the server more.
STOCK_INTERVAL_S = 5.0
STOCK_RECHECK_S = 60.0
TABLE_INTERVAL_S = 10.0
# Without a plugin that can be used: the server may restart with one behind the same address.
PLUGIN_RECHECK_S = 60.0
# The plugin is there and may still begin to steer.
NOT_STEERED_RECHECK_S = 5.0
NO_PLUGIN = "the server runs without the specctl plugin"


class EngineObserver:
    """Keeps the last counters of one target and differences them. Not safe for concurrent use."""

    def __init__(self, client: EngineClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._capabilities: Capabilities | None = None
        self._boot_id: str | None = None
        self._plugin_due_s = float("-inf")
        self._why_no_plugin = NO_PLUGIN
        self._forget()

    def _forget(self) -> None:
        """Counters of another process."""
        self._stock_due_s = float("-inf")
        self._applied: tuple[float, AppliedTable] | None = None
        self._telemetry = TelemetryGains()
        self._stock: tuple[float, StockCounters] | None = None

    async def close(self) -> None:
        await self._client.close()

    async def observe(self) -> Observation:
        now_s = self._clock.now_s()
        try:
            if self._capabilities is None and now_s >= self._plugin_due_s:
                await self._read_capabilities(now_s)
            if self._capabilities is None:
                return await self._observe_stock(now_s)
            return await self._observe_plugin(now_s, self._capabilities)
        except ContractError as error:
            raise TargetError(str(error)) from error

    async def _read_capabilities(self, now_s: float) -> None:
        """None where there is no plugin that can be used: the server is then seen through its metrics."""
        self._why_no_plugin, due_s = NO_PLUGIN, now_s + PLUGIN_RECHECK_S
        fresh = None
        try:
            fresh = await self._client.capabilities()
        except NotSteered as error:
            self._why_no_plugin, due_s = str(error), now_s + NOT_STEERED_RECHECK_S
        except OtherContract as error:
            self._why_no_plugin = str(error)
        boot_id = None if fresh is None else fresh.boot_id
        if boot_id != self._boot_id:
            self._forget()
        self._capabilities, self._boot_id, self._plugin_due_s = fresh, boot_id, due_s

    async def _observe_plugin(self, now_s: float, capabilities: Capabilities) -> Observation:
        gaps: list[str] = []
        telemetry = await self._read_telemetry(gaps)
        if telemetry is not None and telemetry.boot_id != capabilities.boot_id:
            await self._read_capabilities(now_s)
            if self._capabilities is None:
                return await self._observe_stock(now_s)
            capabilities = self._capabilities
            gaps.append("the engine restarted")
        gains = self._gains(now_s, telemetry, gaps)
        applied = await self._read_table(now_s, telemetry, gaps)
        return Observation(
            target=self._client.target,
            time_s=now_s,
            capabilities=capabilities,
            applied=applied,
            **gains._asdict(),
            **levels(telemetry),
            stock=await self._stock_beside_plugin(now_s, gaps),
            may_act=capabilities.controllable,
            why_not_act=capabilities.why_not_controllable,
            gaps=tuple(gaps),
        )

    async def _observe_stock(self, now_s: float) -> Observation:
        gaps: list[str] = []
        before = self._stock
        try:
            counters, delta = await self._read_stock(now_s, gaps)
        except TargetError as error:
            # What answers nothing is no stock server: a proxy without its server says 404, too.
            self._plugin_due_s = float("-inf")
            why = "" if self._why_no_plugin == NO_PLUGIN else f" ({self._why_no_plugin})"
            raise TargetError(f"{error}{why}") from error
        return Observation(
            target=self._client.target,
            time_s=now_s,
            interval_s=None if before is None or delta is None else now_s - before[0],
            stock=delta,
            running=counters.load.running,
            waiting=counters.load.waiting,
            kv_cache_used_ratio=counters.kv_cache_used_ratio,
            may_act=False,
            why_not_act=self._why_no_plugin,
            gaps=tuple(gaps),
        )

    async def _read_telemetry(self, gaps: list[str]) -> Telemetry | None:
        try:
            return await self._client.telemetry()
        except (TargetError, AccessRefused):
            # Another process may answer next, and it may be one without the plugin.
            self._capabilities, self._plugin_due_s = None, float("-inf")
            raise
        except ContractError as error:
            gaps.append(str(error))
            return None

    def _gains(self, now_s: float, telemetry: Telemetry | None, gaps: list[str]) -> Gains:
        try:
            return self._telemetry.since_last(now_s, telemetry)
        except CounterReset as reset:
            gaps.append(str(reset))
            return Gains()

    async def _read_table(
        self, now_s: float, telemetry: Telemetry | None, gaps: list[str]
    ) -> AppliedTable | None:
        if self._applied is not None and telemetry is not None:
            read_s, known = self._applied
            answered = self._client.answered
            if answered is not None and _differ_by_samples(known, answered):
                # Samples change often. Everything else that was put is read back.
                known = answered
                self._applied = read_s, known
            is_same = (telemetry.table_version, telemetry.table_state) == (known.version, known.state)
            if is_same and now_s - read_s < TABLE_INTERVAL_S:
                return known
        self._applied = None
        try:
            self._applied = (now_s, await self._client.table())
        except (TargetError, ContractError) as error:
            gaps.append(str(error))
            return None
        return self._applied[1]

    async def _stock_beside_plugin(self, now_s: float, gaps: list[str]) -> StockDelta | None:
        if now_s < self._stock_due_s:
            return None
        self._stock_due_s = now_s + STOCK_INTERVAL_S
        try:
            return (await self._read_stock(now_s, gaps))[1]
        except TargetError as error:
            # SGLang without --enable-metrics never has any.
            self._stock_due_s = now_s + STOCK_RECHECK_S
            gaps.append(str(error))
            return None

    async def _read_stock(self, now_s: float, gaps: list[str]) -> tuple[StockCounters, StockDelta | None]:
        before, self._stock = self._stock, None
        text = await self._client.metrics_text()
        try:
            counters = parse_stock_metrics(text)
        except TargetError as error:
            raise TargetError(f"{self._client.target}: not an engine: {error}") from error
        self._stock = (now_s, counters)
        gaps.extend(counters.gaps)
        if before is None:
            return counters, None
        try:
            return counters, stock_delta(before[1], counters)
        except CounterReset as reset:
            gaps.append(str(reset))
            return counters, None


def _differ_by_samples(known: AppliedTable, answered: AppliedTable) -> bool:
    """Whether an answer is newer than the table that was read, and has another sample or lease only."""
    if answered.version <= known.version or answered.boot_id != known.boot_id:
        return False
    tables = [
        ([row.model_copy(update={"sample": None}) for row in table.rows], table.class_limits)
        for table in (known, answered)
    ]
    return tables[0] == tables[1]
