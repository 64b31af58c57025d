"""Observer of one server: the plugin's routes where they exist, /metrics in any case."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from specctl.clock import Clock
from specctl.contract import CONTRACT_VERSION, ROUTE_PREFIX
from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable
from specctl.contract.telemetry import Telemetry
from specctl.errors import TargetError
from specctl.http_client import HttpClient, Response
from specctl.observe.counters import CounterReset, cell_deltas, class_deltas, shadow_delta, stock_delta
from specctl.observe.stock import StockCounters, parse_stock_metrics
from specctl.types import CellDelta, ClassDelta, Observation, ShadowDelta, StockDelta

__all__ = ["EngineObserver"]

# With the plugin, /metrics only adds cross-checks; rendering it costs the server more than the telemetry.
STOCK_INTERVAL_S = 5.0
TABLE_INTERVAL_S = 10.0
# A stock server may gain the plugin when it restarts behind the same address.
PLUGIN_RECHECK_S = 60.0

_MESSAGE_CHARACTERS_MOST = 500
_Message = TypeVar("_Message", bound=BaseModel)
_Difference = tuple[
    float | None, tuple[CellDelta, ...] | None, ShadowDelta | None, tuple[ClassDelta, ...] | None
]


class EngineObserver:
    """Keeps the last counters of one target and differences them. Not safe for concurrent use."""

    def __init__(self, client: HttpClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._forget()

    def _forget(self) -> None:
        self._capabilities: Capabilities | None = None
        self._engine_version: str | None = None
        self._applied: AppliedTable | None = None
        self._applied_read_s = float("-inf")
        self._telemetry: tuple[float, Telemetry] | None = None
        self._stock: tuple[float, StockCounters] | None = None
        self._plugin_checked_s = float("-inf")

    async def close(self) -> None:
        await self._client.close()

    async def observe(self) -> Observation:
        now_s = self._clock.now_s()
        if self._capabilities is None and now_s - self._plugin_checked_s >= PLUGIN_RECHECK_S:
            self._capabilities = await self._read_capabilities()
            self._plugin_checked_s = now_s
        if self._capabilities is None:
            return await self._observe_stock(now_s)
        return await self._observe_plugin(now_s, self._capabilities)

    async def _observe_plugin(self, now_s: float, capabilities: Capabilities) -> Observation:
        gaps: list[str] = []
        telemetry = await self._read_telemetry(gaps)
        if telemetry is not None and telemetry.boot_id != capabilities.boot_id:
            # Restarted: everything known of the old process is void, its capabilities included.
            self._forget()
            fresh = await self._read_capabilities()
            if fresh is None:
                raise TargetError(f"{self._client.target}: restarted without the plugin")
            self._capabilities = capabilities = fresh
            gaps.append("the engine restarted")
        interval_s, cells, shadow, classes = self._difference(now_s, telemetry, gaps)
        applied = await self._read_table(now_s, telemetry, gaps)
        _, stock = await self._read_stock(now_s, gaps, required=False)
        return Observation(
            target=self._client.target,
            time_s=now_s,
            interval_s=interval_s,
            boot_id=capabilities.boot_id,
            engine_version=capabilities.engine_version,
            capabilities=capabilities,
            applied=applied,
            cells=cells,
            shadow=shadow,
            classes=classes,
            stock=stock,
            running=None if telemetry is None else telemetry.running,
            waiting=None if telemetry is None else telemetry.waiting,
            decoding=None if telemetry is None else telemetry.decoding,
            kv_cache_used_ratio=None if telemetry is None else telemetry.kv_cache_used_ratio,
            may_act=capabilities.controllable,
            why_not_act=capabilities.why_not_controllable,
            gaps=tuple(gaps),
        )

    async def _observe_stock(self, now_s: float) -> Observation:
        gaps: list[str] = []
        before = self._stock
        counters, delta = await self._read_stock(now_s, gaps, required=True)
        if counters is None:
            raise TargetError(f"{self._client.target}: /metrics cannot be read ({'; '.join(gaps)})")
        if self._engine_version is None:
            self._engine_version = await self._read_version()
        return Observation(
            target=self._client.target,
            time_s=now_s,
            interval_s=None if before is None or delta is None else now_s - before[0],
            engine_version=self._engine_version,
            stock=delta,
            running=counters.running,
            waiting=counters.waiting,
            kv_cache_used_ratio=counters.kv_cache_used_ratio,
            may_act=False,
            why_not_act="the server runs without the specctl plugin",
            gaps=tuple(gaps),
        )

    def _difference(self, now_s: float, telemetry: Telemetry | None, gaps: list[str]) -> _Difference:
        before = self._telemetry
        if telemetry is not None:
            self._telemetry = (now_s, telemetry)
        if before is None or telemetry is None or now_s <= before[0]:
            return None, None, None, None
        try:
            cells = cell_deltas(before[1], telemetry)
            shadow = shadow_delta(before[1].shadow, telemetry.shadow)
        except CounterReset as reset:
            gaps.append(str(reset))
            return None, None, None, None
        return now_s - before[0], cells, shadow, class_deltas(before[1], telemetry)

    async def _read_capabilities(self) -> Capabilities | None:
        """None on a server without the plugin."""
        response = await self._client.get(f"{ROUTE_PREFIX}/capabilities")
        if response.status == 404:
            return None
        capabilities = self._parsed(Capabilities, response, "capabilities")
        if capabilities.contract_version != CONTRACT_VERSION:
            raise TargetError(
                f"{self._client.target}: speaks contract {capabilities.contract_version}, "
                f"this daemon speaks {CONTRACT_VERSION}; upgrade the older one"
            )
        return capabilities

    async def _read_telemetry(self, gaps: list[str]) -> Telemetry | None:
        response = await self._client.get(f"{ROUTE_PREFIX}/telemetry")
        if response.status == 404:
            self._forget()
            raise TargetError(f"{self._client.target}: the plugin's routes are gone (restarted without it?)")
        if response.status != 200:
            raise TargetError(self._status_words(response, "telemetry"))
        try:
            return Telemetry.model_validate_json(response.body)
        except ValidationError as error:
            gaps.append(f"telemetry: {_first_error(error)}")
            return None

    async def _read_table(
        self, now_s: float, telemetry: Telemetry | None, gaps: list[str]
    ) -> AppliedTable | None:
        known = self._applied
        if known is not None and telemetry is not None and now_s - self._applied_read_s < TABLE_INTERVAL_S:
            same = (telemetry.table_version, telemetry.table_state) == (known.version, known.state)
            if same:
                return known
        response = await self._client.get(f"{ROUTE_PREFIX}/table")
        try:
            self._applied = self._parsed(AppliedTable, response, "table")
            self._applied_read_s = now_s
        except TargetError as error:
            self._applied = None
            gaps.append(str(error))
        return self._applied

    async def _read_stock(
        self, now_s: float, gaps: list[str], *, required: bool
    ) -> tuple[StockCounters | None, StockDelta | None]:
        before = self._stock
        if not required and before is not None and now_s - before[0] < STOCK_INTERVAL_S:
            return None, None
        response = await self._client.get("/metrics")
        try:
            if response.status != 200:
                raise TargetError(self._status_words(response, "/metrics"))
            counters = parse_stock_metrics(response.body.decode("utf-8", errors="replace"))
        except TargetError as error:
            if required:
                raise TargetError(f"{self._client.target}: not an engine: {error}") from error
            gaps.append(str(error))
            self._stock = None
            return None, None
        self._stock = (now_s, counters)
        gaps.extend(counters.gaps)
        if before is None:
            return counters, None
        try:
            return counters, stock_delta(before[1], counters)
        except CounterReset as reset:
            gaps.append(str(reset))
            return counters, None

    async def _read_version(self) -> str | None:
        """vLLM's route, then SGLang's."""
        for path in ("/version", "/server_info"):
            response = await self._client.get(path)
            if response.status != 200:
                continue
            version = response.fields().get("version")
            if isinstance(version, str):
                return version
        return None

    def _parsed(self, model: type[_Message], response: Response, what: str) -> _Message:
        if response.status != 200:
            raise TargetError(self._status_words(response, what))
        try:
            return model.model_validate_json(response.body)
        except ValidationError as error:
            raise TargetError(f"{self._client.target}: {what}: {_first_error(error)}") from error

    def _status_words(self, response: Response, what: str) -> str:
        words = {401: "wants a bearer token (--token-file)", 403: "the token may not read here"}
        told = words.get(response.status) or _message_of(response)
        if told is None:
            told = "the engine is not ready" if response.status == 503 else f"HTTP {response.status}"
        return f"{self._client.target}: {what}: {told}"


def _message_of(response: Response) -> str | None:
    """The plugin's own words, if the answer has any."""
    message = response.fields().get("message")
    return message[:_MESSAGE_CHARACTERS_MOST] if isinstance(message, str) and message else None


def _first_error(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"])) or "body"
    return f"{where}: {first['msg']} ({error.error_count()} in all)"
