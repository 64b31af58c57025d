"""The daemon's metrics in a registry of their own, served over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Summary, start_http_server

from specctl.errors import SpecctlError
from specctl.metrics import names
from specctl.types import Decision, Observation

__all__ = ["Exporter"]

NOT_MEASURED = float("nan")
_Metric = Counter | Gauge | Summary


class Exporter:
    """One per daemon. Methods are cheap and never raise."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._decisions = self._counter(names.DECISIONS)
        self._changes = self._counter(names.CHANGES)
        self._errors = self._counter(names.ERRORS)
        self._emitted = self._counter(names.ENGINE_TOKENS)
        self._up = self._gauge(names.TARGET_UP)
        self._lease = self._gauge(names.LEASE_HELD)
        self._setting = self._gauge(names.NUM_SPECULATIVE_TOKENS)
        self._least_chance = self._gauge(names.MIN_TOKEN_PROB)
        self._predicted = self._gauge(names.PREDICTED_TOKENS)
        self._survival = self._gauge(names.ACCEPTANCE_SURVIVAL)
        self._policy = self._gauge(names.POLICY_VALID)
        tick = names.TICK_SECONDS
        self._tick = Summary(tick.name, tick.help, tick.labels, registry=self.registry)
        self._frozen = self._gauge(names.FROZEN)
        self._targets = self._gauge(names.TARGETS)
        self._regret = {
            metric: self._gauge(metric)
            for metric in (
                names.REGRET_OFF,
                names.REGRET_BEST_STATIC,
                names.BEST_STATIC,
                names.EXPLORATION_LOST,
                names.EXPLORATION_TIME,
            )
        }
        self._left_out = self._counter(names.REGRET_LEFT_OUT)
        self._advised = self._gauge(names.RESTART_ADVISED)
        self._cost = self._gauge(names.COST)
        self._policy.set(1)
        # Looking a label up takes longer than counting, and a target that left must be forgotten.
        self._children: dict[str, dict[tuple[_Metric, tuple[str, ...]], Any]] = {}
        # Most gauges of a target stay as they were, and setting one takes longer than comparing.
        self._shown: dict[str, dict[tuple[Gauge, tuple[str, ...]], float]] = {}
        self._by_position: dict[str, list[Gauge]] = {}
        self._shown_tables: dict[str, tuple[tuple[int, int, float | None], ...]] = {}

    def serve(self, host: str, port: int) -> Callable[[], None]:
        """Serve /metrics; returns what stops it. Raises SpecctlError when the port cannot be bound."""
        try:
            server, thread = start_http_server(port, addr=host, registry=self.registry)
        except OSError as error:
            raise SpecctlError(f"metrics port {host}:{port}: {error.strerror or error}") from error

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return stop

    def observed(self, observation: Observation) -> None:
        self._show(self._up, observation.target, 1)
        self._at(self._emitted, observation.target).inc(observation.emitted_tokens or 0)

    def decided(self, decision: Decision) -> None:
        target = decision.target
        self._at(self._decisions, target, decision.reason.value).inc()
        for setting, rate in (
            ("chosen", decision.predicted_tokens_per_s),
            ("present", decision.present_tokens_per_s),
            ("off", decision.off_tokens_per_s),
        ):
            self._show(self._predicted, target, _known(rate), setting)
        table = tuple(
            [
                (one.decode_batch_to, one.from_num_speculative_tokens, one.min_token_prob)
                for one in decision.choices
            ]
        )
        if self._shown_tables.get(target) != table:
            self._shown_tables[target] = table
            for bucket, value, least in table:
                self._at(self._setting, target, str(bucket)).set(value)
                if least is not None:
                    self._at(self._least_chance, target, str(bucket)).set(least)
        if decision.survival is not None:
            shares = decision.survival.survival_at
            for gauge, share in zip(self._positions(target, len(shares)), shares, strict=False):
                gauge.set(share)

    def regret(
        self,
        target: str,
        *,
        off_ratio: float | None,
        best_static_ratio: float | None,
        best_static: int | None,
        exploration_lost_ratio: float | None,
        exploration_time_ratio: float | None,
        left_out_looks: int,
    ) -> None:
        for metric, value in (
            (names.REGRET_OFF, off_ratio),
            (names.REGRET_BEST_STATIC, best_static_ratio),
            (names.BEST_STATIC, best_static),
            (names.EXPLORATION_LOST, exploration_lost_ratio),
            (names.EXPLORATION_TIME, exploration_time_ratio),
        ):
            self._at(self._regret[metric], target).set(_known(value))
        self._at(self._left_out, target).inc(left_out_looks)

    def cost(self, target: str, per_million_tokens: float | None) -> None:
        """Served once a policy has told any."""
        if per_million_tokens is not None or (self._cost, ()) in self._children.get(target, {}):
            self._at(self._cost, target).set(_known(per_million_tokens))

    def restart_advised(self, target: str, *, is_advised: bool) -> None:
        self._at(self._advised, target).set(1 if is_advised else 0)

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

    def targets(self, count: int) -> None:
        self._targets.set(count)

    def forget(self, target: str) -> None:
        """A target that left is no longer served."""
        self._shown.pop(target, None)
        self._shown_tables.pop(target, None)
        self._by_position.pop(target, None)
        for metric, labels in self._children.pop(target, {}):
            metric.remove(target, *labels)

    def _positions(self, target: str, count: int) -> list[Gauge]:
        """At least ``count`` gauges of the survival, by position: they move at every look."""
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

    def _counter(self, metric: names.Metric) -> Counter:
        return Counter(metric.name, metric.help, metric.labels, registry=self.registry)

    def _gauge(self, metric: names.Metric) -> Gauge:
        return Gauge(metric.name, metric.help, metric.labels, registry=self.registry)


def _known(value: float | None) -> float:
    """Not known is NaN, never 0."""
    return NOT_MEASURED if value is None else value
