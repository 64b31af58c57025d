"""The daemon's metrics in a registry of their own."""

from __future__ import annotations

from collections.abc import Callable, Container
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
from specctl.metrics.names import Metric
from specctl.types import Observation
from specctl.watch.board import instance_of
from specctl.watch.window import Interval

__all__ = ["Exporter"]

NOT_MEASURED = float("nan")
_MADE: dict[str, Callable[..., Any]] = {"counter": Counter, "gauge": Gauge, "summary": Summary}
_KNOBS = {
    "num_speculative_tokens": names.NUM_SPECULATIVE_TOKENS,
    "tree_topk": names.TREE_TOPK,
    "width_tokens": names.VERIFY_WIDTH,
    "min_token_prob": names.MIN_TOKEN_PROB,
}


class Exporter:
    """One per daemon. Methods are cheap and never raise."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._metrics: dict[Metric, Any] = {
            one: _MADE[one.type](one.name, one.help, one.labels, registry=self.registry)
            for one in names.DAEMON
        }
        self._metrics[names.BUILD_INFO].labels(__version__).set(1)
        self._metrics[names.POLICY_VALID].set(1)
        # Looking a label up takes longer than counting, and a target that left must be forgotten.
        self._children: dict[str, dict[Metric, dict[tuple[str, ...], Any]]] = {}
        self._shown_tables: dict[str, tuple[tuple[int, Setting], ...]] = {}

    def observed(self, observation: Observation) -> None:
        self._set(names.TARGET_UP, observation.target, 1)
        self._at(names.LAST_POLL, observation.target).set(self._clock.utc().timestamp())
        self._at(names.ENGINE_TOKENS, observation.target).inc(observation.emitted_tokens or 0)
        self._adapts(observation)
        for entry, count in observation.failures.items():
            self._set(names.PLUGIN_FAILURES, observation.target, count, entry)
        self._keep_only(names.PLUGIN_FAILURES, observation.target, observation.failures)

    def _adapts(self, observation: Observation) -> None:
        """Of an engine that adapts by itself."""
        capabilities, state = observation.capabilities, observation.adaptivity
        known = None if capabilities is None else capabilities.adaptivity
        if known is None or state is None:
            return
        self._set(names.ADAPTIVITY_ON, observation.target, float(state.is_on), known.name)
        tokens = decided_by(state, observation.cells or ()) if state.is_on else None
        self._set(names.ADAPTIVITY_TOKENS, observation.target, _known(tokens), known.name)

    def known(self, target: str, capabilities: Capabilities) -> None:
        """What the server is. One that restarted may be another."""
        labels = (
            instance_of(target),
            capabilities.engine,
            capabilities.engine_version,
            capabilities.model,
            capabilities.method,
        )
        self._drop_all(names.TARGET_INFO, target)
        self._set(names.TARGET_INFO, target, 1, *labels)

    def acceptance(self, target: str, recent: Interval, busiest: Choice | None) -> None:
        """``recent``: the last seconds. What was not measured in them is not served."""
        tokens = None if busiest is None else busiest.before.num_speculative_tokens
        for metric, value in (
            (names.CURRENT_TOKENS, tokens),
            (names.ACCEPTANCE_RATE, recent.acceptance_rate),
            (names.ACCEPTANCE_LENGTH, recent.acceptance_length),
            (names.EFFICIENCY, recent.efficiency),
        ):
            self._set(metric, target, value)

    def planned(self, plan: Plan) -> None:
        target, lead = plan.target, plan.lead
        self._at(names.DECISIONS, target, plan.reason.value).inc()
        if lead is not None:
            for setting, rate in (
                ("chosen", lead.predicted_tokens_per_s),
                ("present", lead.present_tokens_per_s),
                ("off", lead.off_tokens_per_s),
            ):
                self._set(names.PREDICTED_TOKENS, target, _known(rate), setting)
        table = tuple([(one.last, one.before) for one in plan.choices])
        if table and self._shown_tables.get(target) != table:
            self._shown_tables[target] = table
            buckets = {str(bucket) for bucket, _ in table}
            for metric in _KNOBS.values():
                self._keep_only(metric, target, buckets)
            for bucket, in_force in table:
                for knob, metric in _KNOBS.items():
                    self._set(metric, target, getattr(in_force, knob), str(bucket))
        if plan.forecast is not None and plan.forecast.acceptance.trials > 0:
            for j, share in enumerate(plan.forecast.acceptance.survival.tolist(), start=1):
                self._set(names.ACCEPTANCE_SURVIVAL, target, share, str(j))

    def figures(self, target: str, account: Account) -> None:
        best = account.best_static
        for metric, value in (
            (names.SPEEDUP_OFF, account.speedup_vs_off),
            (names.SPEEDUP_BEST_STATIC, account.speedup_vs_best_static),
            (names.BEST_STATIC, None if best is None else best.num_speculative_tokens),
            (names.SAMPLE_LOSS, account.sample_loss_ratio),
            (names.COST, account.cost_per_million),
        ):
            if value is not None:
                self._set(metric, target, value)

    def restart_advised(self, target: str, *, is_advised: bool) -> None:
        self._set(names.RESTART_ADVISED, target, is_advised)

    def soundness(self, target: str, cause: str | None) -> None:
        """None: nothing is wrong that is known."""
        self._drop_all(names.UNSOUND, target)
        if cause is not None:
            self._set(names.UNSOUND, target, 1, cause)

    def changed(self, target: str) -> None:
        self._at(names.CHANGES, target).inc()

    def failed(self, target: str, kind: str, *, is_down: bool) -> None:
        self._at(names.ERRORS, target, kind).inc()
        if is_down:
            self._set(names.TARGET_UP, target, 0)

    def lease(self, target: str, *, is_held: bool) -> None:
        self._set(names.LEASE_HELD, target, is_held)

    def frozen(self, target: str, *, is_frozen: bool) -> None:
        self._set(names.FROZEN, target, is_frozen)

    def ticked(self, target: str, seconds: float) -> None:
        self._at(names.TICK_SECONDS, target).observe(seconds)

    def policy(self, *, is_valid: bool) -> None:
        self._metrics[names.POLICY_VALID].set(1 if is_valid else 0)

    def audit_lost(self) -> None:
        self._metrics[names.AUDIT_LOST].inc()

    def targets(self, count: int) -> None:
        self._metrics[names.TARGETS].set(count)

    def forget(self, target: str) -> None:
        """A target that left is no longer served."""
        self._shown_tables.pop(target, None)
        for metric in list(self._children.get(target, {})):
            self._drop_all(metric, target)
        self._children.pop(target, None)

    def _set(self, metric: Metric, target: str, value: float | None, *labels: str) -> None:
        """None: not served."""
        if value is None:
            self._drop(metric, target, *labels)
        else:
            self._at(metric, target, *labels).set(value)

    def _at(self, metric: Metric, target: str, *labels: str) -> Any:
        known = self._children.setdefault(target, {}).setdefault(metric, {})
        child = known.get(labels)
        if child is None:
            child = known[labels] = self._metrics[metric].labels(target, *labels)
        return child

    def _keep_only(self, metric: Metric, target: str, labelled: Container[str]) -> None:
        """An engine that restarts may have other buckets and failures; what it no longer tells is dropped."""
        for labels in list(self._children.get(target, {}).get(metric, {})):
            if labels[0] not in labelled:
                self._drop(metric, target, *labels)

    def _drop_all(self, metric: Metric, target: str) -> None:
        for labels in list(self._children.get(target, {}).get(metric, {})):
            self._drop(metric, target, *labels)

    def _drop(self, metric: Metric, target: str, *labels: str) -> None:
        if self._children.get(target, {}).get(metric, {}).pop(labels, None) is not None:
            self._metrics[metric].remove(target, *labels)


def _known(value: float | None) -> float:
    """Not known is NaN, never 0."""
    return NOT_MEASURED if value is None else value
