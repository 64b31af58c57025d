"""The daemon's metrics in a registry of their own."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, Summary

from specctl import __version__
from specctl.clock import Clock, SystemClock
from specctl.contract.capabilities import Capabilities
from specctl.contract.setting import Setting
from specctl.core.account import Account
from specctl.core.messages import Choice, Plan
from specctl.core.supervision import decided_by
from specctl.metrics import names
from specctl.types import Observation
from specctl.watch.board import instance_of
from specctl.watch.window import Interval

__all__ = ["Exporter"]

NOT_MEASURED = float("nan")
_Metric = Counter | Gauge | Summary


class Exporter:
    """One per daemon. Methods are cheap and never raise."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._gauge(names.BUILD_INFO).labels(__version__).set(1)
        self._decisions = self._counter(names.DECISIONS)
        self._changes = self._counter(names.CHANGES)
        self._errors = self._counter(names.ERRORS)
        self._audit_lost = self._counter(names.AUDIT_LOST)
        self._emitted = self._counter(names.ENGINE_TOKENS)
        self._info = self._gauge(names.TARGET_INFO)
        self._up = self._gauge(names.TARGET_UP)
        self._last_poll = self._gauge(names.LAST_POLL)
        self._plugin_failures = self._gauge(names.PLUGIN_FAILURES)
        self._lease = self._gauge(names.LEASE_HELD)
        self._knobs = {
            "num_speculative_tokens": self._gauge(names.NUM_SPECULATIVE_TOKENS),
            "tree_topk": self._gauge(names.TREE_TOPK),
            "width_tokens": self._gauge(names.VERIFY_WIDTH),
            "min_token_prob": self._gauge(names.MIN_TOKEN_PROB),
        }
        self._current = self._gauge(names.CURRENT_TOKENS)
        self._acceptance_rate = self._gauge(names.ACCEPTANCE_RATE)
        self._acceptance_length = self._gauge(names.ACCEPTANCE_LENGTH)
        self._efficiency = self._gauge(names.EFFICIENCY)
        self._predicted = self._gauge(names.PREDICTED_TOKENS)
        self._survival = self._gauge(names.ACCEPTANCE_SURVIVAL)
        self._policy = self._gauge(names.POLICY_VALID)
        tick = names.TICK_SECONDS
        self._tick = Summary(tick.name, tick.help, tick.labels, registry=self.registry)
        self._frozen = self._gauge(names.FROZEN)
        self._targets = self._gauge(names.TARGETS)
        self._speedup_off = self._gauge(names.SPEEDUP_OFF)
        self._speedup_best = self._gauge(names.SPEEDUP_BEST_STATIC)
        self._best_static = self._gauge(names.BEST_STATIC)
        self._sample_loss = self._gauge(names.SAMPLE_LOSS)
        self._advised = self._gauge(names.RESTART_ADVISED)
        self._adaptivity = self._gauge(names.ADAPTIVITY_ON)
        self._adaptivity_tokens = self._gauge(names.ADAPTIVITY_TOKENS)
        self._unsound = self._gauge(names.UNSOUND)
        self._cost = self._gauge(names.COST)
        self._policy.set(1)
        # Looking a label up takes longer than counting, and a target that left must be forgotten.
        self._children: dict[str, dict[tuple[_Metric, tuple[str, ...]], Any]] = {}
        # Most gauges of a target stay as they were, and setting one takes longer than comparing.
        self._shown: dict[str, dict[tuple[Gauge, tuple[str, ...]], float]] = {}
        self._by_position: dict[str, list[Gauge]] = {}
        self._failing: dict[str, set[str]] = {}
        self._shown_tables: dict[str, tuple[tuple[int, Setting], ...]] = {}

    def observed(self, observation: Observation) -> None:
        self._show(self._up, observation.target, 1)
        self._at(self._last_poll, observation.target).set(self._clock.utc().timestamp())
        self._at(self._emitted, observation.target).inc(observation.emitted_tokens or 0)
        self._adapts(observation)
        for entry, count in observation.failures.items():
            self._show(self._plugin_failures, observation.target, count, entry)
        if self._failing.get(observation.target, set()) != observation.failures.keys():
            self._failing[observation.target] = set(observation.failures)
            self._keep_only(self._plugin_failures, observation.target, observation.failures)

    def _adapts(self, observation: Observation) -> None:
        """Of an engine that adapts by itself."""
        capabilities, state = observation.capabilities, observation.adaptivity
        known = None if capabilities is None else capabilities.adaptivity
        if known is None or state is None:
            return
        self._show(self._adaptivity, observation.target, float(state.is_on), known.name)
        tokens = decided_by(state, observation.cells or ()) if state.is_on else None
        self._show(self._adaptivity_tokens, observation.target, _known(tokens), known.name)

    def known(self, target: str, capabilities: Capabilities) -> None:
        """What the server is. One that restarted may be another."""
        labels = (
            instance_of(target),
            capabilities.engine,
            capabilities.engine_version,
            capabilities.model,
            capabilities.method,
        )
        for metric, shown in list(self._children.get(target, {})):
            if metric is self._info and shown != labels:
                self._drop(self._info, target, *shown)
        self._at(self._info, target, *labels).set(1)

    def acceptance(self, target: str, recent: Interval, busiest: Choice | None) -> None:
        """``recent``: the last seconds. What was not measured in them is not served."""
        tokens = None if busiest is None else busiest.before.num_speculative_tokens
        for gauge, value in (
            (self._current, tokens),
            (self._acceptance_rate, recent.acceptance_rate),
            (self._acceptance_length, recent.acceptance_length),
            (self._efficiency, recent.efficiency),
        ):
            if value is None:
                self._drop(gauge, target)
            else:
                self._at(gauge, target).set(value)

    def planned(self, plan: Plan) -> None:
        target, lead = plan.target, plan.lead
        self._at(self._decisions, target, plan.reason.value).inc()
        if lead is not None:
            for setting, rate in (
                ("chosen", lead.predicted_tokens_per_s),
                ("present", lead.present_tokens_per_s),
                ("off", lead.off_tokens_per_s),
            ):
                self._show(self._predicted, target, _known(rate), setting)
        table = tuple([(one.last, one.before) for one in plan.choices])
        if table and self._shown_tables.get(target) != table:
            self._shown_tables[target] = table
            buckets = {str(bucket) for bucket, _ in table}
            for gauge in self._knobs.values():
                self._keep_only(gauge, target, buckets)
            for bucket, in_force in table:
                for knob, gauge in self._knobs.items():
                    if (value := getattr(in_force, knob)) is not None:
                        self._at(gauge, target, str(bucket)).set(value)
                    else:
                        self._drop(gauge, target, str(bucket))
        if plan.forecast is not None and plan.forecast.acceptance.trials > 0:
            shares = plan.forecast.acceptance.survival.tolist()
            for gauge, share in zip(self._positions(target, len(shares)), shares, strict=False):
                gauge.set(share)

    def figures(self, target: str, account: Account) -> None:
        best = account.best_static
        for gauge, value in (
            (self._speedup_off, account.speedup_vs_off),
            (self._speedup_best, account.speedup_vs_best_static),
            (self._best_static, None if best is None else best.num_speculative_tokens),
            (self._sample_loss, account.sample_loss_ratio),
            (self._cost, account.cost_per_million),
        ):
            if value is not None:
                self._at(gauge, target).set(value)

    def restart_advised(self, target: str, *, is_advised: bool) -> None:
        self._at(self._advised, target).set(1 if is_advised else 0)

    def soundness(self, target: str, cause: str | None) -> None:
        """None: nothing is wrong that is known."""
        self._keep_only(self._unsound, target, () if cause is None else (cause,))
        if cause is not None:
            self._at(self._unsound, target, cause).set(1)

    def changed(self, target: str) -> None:
        self._at(self._changes, target).inc()

    def failed(self, target: str, kind: str, *, is_down: bool) -> None:
        self._at(self._errors, target, kind).inc()
        if is_down:
            self._show(self._up, target, 0)

    def lease(self, target: str, *, is_held: bool) -> None:
        self._at(self._lease, target).set(1 if is_held else 0)

    def frozen(self, target: str, *, is_frozen: bool) -> None:
        self._show(self._frozen, target, 1 if is_frozen else 0)

    def ticked(self, target: str, seconds: float) -> None:
        self._at(self._tick, target).observe(seconds)

    def policy(self, *, is_valid: bool) -> None:
        self._policy.set(1 if is_valid else 0)

    def audit_lost(self) -> None:
        self._audit_lost.inc()

    def targets(self, count: int) -> None:
        self._targets.set(count)

    def forget(self, target: str) -> None:
        """A target that left is no longer served."""
        self._shown.pop(target, None)
        self._failing.pop(target, None)
        self._shown_tables.pop(target, None)
        self._by_position.pop(target, None)
        for metric, labels in self._children.pop(target, {}):
            metric.remove(target, *labels)

    def _positions(self, target: str, count: int) -> list[Gauge]:
        """At least ``count`` gauges of the survival, by position: they move at every poll."""
        known = self._by_position.setdefault(target, [])
        for j in range(len(known), count):
            known.append(self._at(self._survival, target, str(j + 1)))
        return known

    def _show(self, gauge: Gauge, target: str, value: float, *labels: str) -> None:
        shown = self._shown.setdefault(target, {})
        key = gauge, labels
        # "is": what is not measured does not equal itself.
        if (before := shown.get(key)) is not value and before != value:
            shown[key] = value
            self._at(gauge, target, *labels).set(value)

    def _at(self, metric: _Metric, target: str, *labels: str) -> Any:
        known = self._children.setdefault(target, {})
        child = known.get((metric, labels))
        if child is None:
            child = known[metric, labels] = metric.labels(target, *labels)
        return child

    def _keep_only(self, gauge: Gauge, target: str, names: Container[str]) -> None:
        """An engine that restarts may have other buckets and failures; what it no longer tells is dropped."""
        for metric, labels in list(self._children.get(target, {})):
            if metric is gauge and labels[0] not in names:
                self._drop(gauge, target, *labels)

    def _drop(self, metric: Gauge, target: str, *labels: str) -> None:
        self._shown.get(target, {}).pop((metric, labels), None)
        if self._children.get(target, {}).pop((metric, labels), None) is not None:
            metric.remove(target, *labels)

    def _counter(self, metric: names.Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self.registry)

    def _gauge(self, metric: names.Metric) -> Gauge:
        return Gauge(metric.name, metric.help, metric.labels, registry=self.registry)


def _known(value: float | None) -> float:
    """Not known is NaN, never 0."""
    return NOT_MEASURED if value is None else value
