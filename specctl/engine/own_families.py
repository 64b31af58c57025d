"""The plugin's counts as families of metrics, and as a page of Prometheus or OpenMetrics text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client import exposition as text_format
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics_format

from specctl.contract.capabilities import Capabilities
from specctl.contract.table import AppliedTable, TableState
from specctl.engine.request_classes import EngineTelemetry
from specctl.engine.verified_batches import ENGINES, OURS
from specctl.metrics import names

__all__ = ["families", "joined"]

_END = b"# EOF\n"
_BY_SETTING = {
    names.ENGINE_STEPS: "steps",
    names.ENGINE_SAMPLED_STEPS: "sampled_steps",
    names.ENGINE_STEP_SECONDS: "step_s",
    names.ENGINE_EMITTED: "emitted_tokens",
    names.ENGINE_DRAFTED: "drafted_tokens",
    names.ENGINE_ACCEPTED: "accepted_tokens",
}


def joined(page: bytes, found: tuple[Family, ...]) -> bytes:
    """``page`` with ``found`` behind it, in the page's own format."""
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
    if telemetry.front_end_waiting_pieces is not None:
        waiting = float(telemetry.front_end_waiting_pieces)
        yield _family(names.ENGINE_FRONT_END, [((model,), waiting)])
    for metric, field in _BY_SETTING.items():
        yield _by_setting(metric, field, model, telemetry)
    yield _verified(model, telemetry)
    if (checks := telemetry.self_checks) is not None:
        results = {"identical": checks.identical, "tie": checks.ties, "differing": checks.differing}
        found = [((model, result), float(count)) for result, count in results.items()]
        yield _family(names.ENGINE_SELF_CHECKS, found)
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
