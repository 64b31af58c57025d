"""A running server measured over its routes."""

from __future__ import annotations

import asyncio

from specctl.clock import Clock
from specctl.contract.capabilities import Capabilities
from specctl.engine_api.client import EngineClient
from specctl.http_client import HttpClient
from specctl.simulate.profiling.measure import Measured, Plan, measure
from specctl.simulate.profiling.steps import StepReader
from specctl.simulate.profiling.synthetic_load import SyntheticLoad
from specctl.simulate.profiling.temporary_table import TemporaryTable

__all__ = ["measure_server"]

OWN_PATIENCE_S = 120.0


async def measure_server(
    client: EngineClient,
    capabilities: Capabilities,
    clock: Clock,
    stop: asyncio.Event,
    plan: Plan,
    *,
    owner: str,
    requests: int | None,
    key: str | None = None,
) -> Measured:
    """``requests``: at most so many of our own, sent with ``key``; None: none. Raises as ``measure``."""
    table = TemporaryTable(client, capabilities, clock, owner=owner)
    connections = capabilities.decode_batch_max
    async with HttpClient(
        client.target, token=key, timeout_s=OWN_PATIENCE_S, connections_max=connections
    ) as sender:
        own = None
        if requests is not None:
            own = SyntheticLoad(
                sender,
                capabilities.model,
                total=requests,
                context_max_tokens=capabilities.context_max_tokens,
            )
        return await measure(table, StepReader(client), capabilities, clock, stop, plan, own)
