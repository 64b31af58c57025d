"""What a running server says of itself over a few seconds, read once for all checks."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime

import aiohttp

from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable
from specctl.contract.telemetry import ShadowAcceptance, Telemetry, TelemetryCell
from specctl.engine_api.client import EngineClient
from specctl.engine_api.deltas import CounterReset, cell_deltas, shadow_delta
from specctl.engine_api.stock_metrics import StockCounters, parse_stock_metrics
from specctl.errors import ContractError, NotSteered, OtherContract, TargetError
from specctl.http_client import HttpClient

__all__ = ["Seen", "look"]

POLL_S = 1.0
_wall_s = time.time


@dataclass(slots=True)
class Seen:
    """None: not reported. ``tables``: one a second of the window; ``why_not_steered``: the server's own
    words."""

    target: str
    capabilities: Capabilities | None = None
    has_routes: bool = True
    why_not_steered: str | None = None
    other_contract: str | None = None
    trouble: str | None = None
    tables: list[AppliedTable] = field(default_factory=list)
    before: Telemetry | None = None
    after: Telemetry | None = None
    metrics: StockCounters | None = None
    metrics_trouble: str | None = None
    metrics_text: str = ""
    engine_version: str | None = None
    clock_ahead_s: float | None = None
    """How far the server's clock is ahead of this machine's, to the second."""

    @property
    def table(self) -> AppliedTable | None:
        return self.tables[-1] if self.tables else None

    @property
    def is_engine(self) -> bool:
        """Something of an engine was seen."""
        has_routes = self.capabilities is not None or self.why_not_steered is not None
        known = has_routes or self.other_contract is not None
        return known or self.metrics is not None or self.engine_version is not None

    @property
    def window_cells(self) -> tuple[TelemetryCell, ...]:
        """Of the window; empty where counters began anew."""
        if self.before is None or self.after is None:
            return ()
        try:
            return cell_deltas(self.before, self.after)
        except CounterReset:
            return ()

    @property
    def window_shadow(self) -> ShadowAcceptance | None:
        if self.before is None or self.after is None:
            return None
        try:
            return shadow_delta(self.before.shadow, self.after.shadow)
        except CounterReset:
            return None


async def look(client: EngineClient, http: HttpClient, window_s: float) -> Seen:
    """Raises nothing: what cannot be read is part of what is seen."""
    seen = Seen(client.target)
    await _read_capabilities(client, seen)
    if seen.trouble is None:
        await _read_metrics(client, seen)
        seen.engine_version = await _engine_version(http, seen)
        seen.clock_ahead_s = await _clock_ahead_s(client.target)
    if seen.capabilities is not None:
        await _watch(client, seen, window_s)
    return seen


async def _read_capabilities(client: EngineClient, seen: Seen) -> None:
    try:
        seen.capabilities = await client.capabilities()
        seen.has_routes = seen.capabilities is not None
    except NotSteered as error:
        seen.why_not_steered = str(error)
    except OtherContract as error:
        seen.other_contract = str(error)
    except (TargetError, ContractError) as error:
        seen.trouble = str(error)


async def _read_metrics(client: EngineClient, seen: Seen) -> None:
    try:
        seen.metrics_text = await client.metrics_text()
        seen.metrics = parse_stock_metrics(seen.metrics_text)
    except (TargetError, ContractError) as error:
        seen.metrics_trouble = str(error)


async def _watch(client: EngineClient, seen: Seen, window_s: float) -> None:
    ends_s = time.monotonic() + window_s
    try:
        seen.before = await client.telemetry()
        seen.tables.append(await client.table())
        while (left_s := ends_s - time.monotonic()) > 0:
            await asyncio.sleep(min(POLL_S, left_s))
            seen.tables.append(await client.table())
        seen.after = await client.telemetry()
    except (TargetError, ContractError) as error:
        seen.trouble = str(error)


async def _engine_version(http: HttpClient, seen: Seen) -> str | None:
    """vLLM's /version, SGLang's /get_server_info; the plugin's word first."""
    if seen.capabilities is not None:
        return seen.capabilities.engine_version
    try:
        response = await http.get("/version")
    except TargetError:
        return None
    version = response.fields().get("version") if response.status == 200 else None
    return version if isinstance(version, str) else None


async def _clock_ahead_s(target: str) -> float | None:
    """By the header Date of any answer. None: there is none, or the target is a socket."""
    if not target.startswith(("http://", "https://")):
        return None
    try:
        timeout = aiohttp.ClientTimeout(total=5)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            began_s = _wall_s()
            async with session.get(f"{target}/version", allow_redirects=False) as response:
                stamp = response.headers.get("Date")
            middle_s = (began_s + _wall_s()) / 2
        # The header has whole seconds, cut off: half a second is added.
        return None if stamp is None else parsedate_to_datetime(stamp).timestamp() + 0.5 - middle_s
    except (aiohttp.ClientError, TimeoutError, ValueError, OSError):
        return None
