"""What the plugin counts, on the engine's own /metrics.

The engine's page is served as it is, and what the plugin counts follows it. That works whichever registry the
engine has: vLLM's, or that of several processes (vLLM with several API servers, SGLang), where a collector of
this process would not be asked.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client import exposition as text_format
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics_format
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable, TableState
from specctl.engine import rank_calls
from specctl.engine.request_classes import EngineTelemetry
from specctl.engine.verified_batches import ENGINES, OURS
from specctl.metrics import names

__all__ = ["OwnMetrics", "families"]

FRESH_S = 1.0
"""A page that is asked for more often shows the same counts."""
PATIENCE_S = 1.0
"""A scrape waits no longer for a scheduler; its step may take long."""
_END = b"# EOF\n"
_BY_SETTING = {
    names.ENGINE_STEPS: "steps",
    names.ENGINE_SAMPLED_STEPS: "sampled_steps",
    names.ENGINE_STEP_SECONDS: "step_s",
    names.ENGINE_EMITTED: "emitted_tokens",
    names.ENGINE_DRAFTED: "drafted_tokens",
    names.ENGINE_ACCEPTED: "accepted_tokens",
}


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
            body = _joined(body, found)
            length = str(len(body)).encode()
            headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
            start["headers"] = [*headers, (b"content-length", length)]
        await send(start)
        await send({"type": "http.response.body", "body": body})

    await app(scope, receive, keep)


def _joined(page: bytes, found: tuple[Family, ...]) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Found(found))
    if page.endswith(_END):
        more: bytes = openmetrics_format.generate_latest(registry)  # type: ignore[no-untyped-call]
        return page.removesuffix(_END) + more
    return page + text_format.generate_latest(registry)


class _Found:
    """A collector of what was read."""

    def __init__(self, found: tuple[Family, ...]) -> None:
        self._found = found

    def collect(self) -> Iterable[Family]:
        return self._found


def families(
    capabilities: Capabilities | None, table: AppliedTable | None, telemetry: EngineTelemetry | None
) -> Iterator[Family]:
    """None: the engine did not answer."""
    is_answered = capabilities is not None and table is not None and telemetry is not None
    yield _family(names.ENGINE_ANSWERED, [((), float(is_answered))])
    if capabilities is None or table is None or telemetry is None:
        return
    model = capabilities.model
    about = (model, capabilities.engine, capabilities.engine_version, capabilities.method)
    yield _family(names.ENGINE_INFO, [((*about, capabilities.plugin_version), 1.0)])
    yield from _of_table(model, table)
    for metric, value in (
        (names.ENGINE_TOKENS_NOW, telemetry.num_speculative_tokens),
        (names.ENGINE_GUARDED, telemetry.guarded_steps),
        (names.ENGINE_STEERING, telemetry.steering_s),
    ):
        yield _family(metric, [((model,), float(value))])
    for metric, field in _BY_SETTING.items():
        yield _by_setting(metric, field, model, telemetry)
    yield _verified(model, telemetry)
    failures = [((model, entry), count) for entry, count in telemetry.failures.items()]
    yield _family(names.ENGINE_FAILURES, failures)


def _of_table(model: str, table: AppliedTable) -> Iterator[Family]:
    states = [((model, state.value), float(state is table.state)) for state in TableState]
    yield _family(names.ENGINE_TABLE_VERSION, [((model,), float(table.version))])
    yield _family(names.ENGINE_TABLE_STATE, states)
    yield _family(names.ENGINE_TABLE_AGE, [((model,), table.age_s)])
    if table.lease_remaining_s is not None:
        yield _family(names.ENGINE_LEASE, [((model,), table.lease_remaining_s)])


def _by_setting(metric: names.Metric, field: str, model: str, telemetry: EngineTelemetry) -> Family:
    sums: Counter[tuple[str, ...]] = Counter()
    for cell in telemetry.cells:
        # Steps of prompts alone have no setting.
        if cell.request_steps:
            sums[model, str(cell.num_speculative_tokens), str(cell.tree_topk)] += getattr(cell, field)
    return _family(metric, list(sums.items()))


def _verified(model: str, telemetry: EngineTelemetry) -> Family:
    samples: list[tuple[tuple[str, ...], float]] = []
    for name, count in telemetry.proposer.items():
        if name == OURS:
            samples.append(((model, "specctl", ""), count))
        elif name.startswith(ENGINES):
            samples.append(((model, "engine", name.removeprefix(ENGINES)), count))
    return _family(names.ENGINE_VERIFIED, samples)


def _family(metric: names.Metric, samples: Iterable[tuple[tuple[str, ...], Any]]) -> Family:
    kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in samples:
        family.add_metric(labels, float(value))
    return family
