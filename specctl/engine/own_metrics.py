"""What the plugin counts, on the engine's own /metrics.

The engine's page is served as it is, and what the plugin counts follows it. That works whichever registry the
engine has: vLLM's, or that of several processes (vLLM with several API servers, SGLang), where a collector of
this process would not be asked.

prometheus_client is imported with the first page: it chooses between one process and several when it is
imported, which must not be before the engine has set PROMETHEUS_MULTIPROC_DIR.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable
from specctl.engine import rank_calls
from specctl.engine.request_classes import EngineTelemetry

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as Family

__all__ = ["OwnMetrics"]

FRESH_S = 1.0
"""A page that is asked for more often shows the same counts."""
PATIENCE_S = 1.0
"""A scrape waits no longer for a scheduler; its step may take long."""


class OwnMetrics:
    """ASGI middleware. Other paths pass; so does /metrics of an engine that specctl does not steer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._lock = asyncio.Lock()
        self._read_s = float("-inf")
        self._families: tuple[Family, ...] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].rstrip("/") != "/metrics" or scope["method"] != "GET":
            await self._app(scope, receive, send)
            return
        engine = scope["app"].state.specctl_engine
        if engine is None:
            await self._app(scope, receive, send)
            return
        found = await self._read(engine)
        # The end of a compressed page cannot be added to.
        headers = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
        await _served(self._app, {**scope, "headers": headers}, receive, send, found)

    async def _read(self, engine: rank_calls.Ranks) -> tuple[Family, ...]:
        async with self._lock:
            if time.monotonic() - self._read_s >= FRESH_S:
                from specctl.engine.own_families import families

                try:
                    async with asyncio.timeout(PATIENCE_S):
                        self._families = await _asked(engine)
                except Exception as error:
                    # Nothing of ours may cost the engine its page.
                    self._families = tuple(families(None, None, None))
                    if not isinstance(error, TimeoutError):
                        engine.log.warning("specctl: no metrics of the plugin: %s", error)
                self._read_s = time.monotonic()
            return self._families


async def _asked(engine: rank_calls.Ranks) -> tuple[Family, ...]:
    from specctl.engine.own_families import families

    asked = ("capabilities", "table", "telemetry")
    answers = [await rank_calls.ask(engine, operation) for operation in asked]
    if any(answer.status != 200 for answer in answers):
        return tuple(families(None, None, None))
    capabilities, table, telemetry = [answer.body for answer in answers]
    return tuple(
        families(
            Capabilities.model_validate(capabilities),
            AppliedTable.model_validate(table),
            EngineTelemetry.model_validate(telemetry),
        )
    )


async def _served(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, found: tuple[Family, ...]
) -> None:
    """The engine's answer, with ``found`` behind it in the same format."""
    from specctl.engine.own_families import joined

    start: Message = {}
    page = bytearray()

    async def keep(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
            return
        page.extend(message.get("body", b""))
        if message.get("more_body", False):
            return
        body = bytes(page)
        if start["status"] == 200:
            body = joined(body, found)
            length = str(len(body)).encode()
            headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
            start["headers"] = [*headers, (b"content-length", length)]
        await send(start)
        await send({"type": "http.response.body", "body": body})

    await app(scope, receive, keep)
