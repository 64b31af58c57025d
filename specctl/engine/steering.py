"""What steering one scheduler by the live table takes, whichever engine the scheduler is of.

A plugin's subclass knows its engine's batches and results. Nothing here may bring the engine down: an
unexpected error is logged once, the table stops being looked up, and the engine goes on with what it was
started with.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from specctl.contract import CONTRACT_VERSION
from specctl.contract.adaptivity import AdaptivityState
from specctl.contract.capabilities import Capabilities
from specctl.contract.setting import Setting
from specctl.contract.table import TableRow
from specctl.contract.telemetry import SelfChecks, ShadowAcceptance
from specctl.engine.buckets import DecodeBatchBuckets
from specctl.engine.guard import GUARD
from specctl.engine.live_table import LiveTable
from specctl.engine.request_classes import EngineTelemetry
from specctl.engine.service import handle
from specctl.engine.step_counters import StepCounters, StepRecord
from specctl.engine.step_sampling import StepSampler
from specctl.engine.traffic_classes import RequestClasses

__all__ = ["Gauges", "OpenStep", "Steering"]


@dataclass(frozen=True, slots=True)
class Gauges:
    """Of a scheduler and its proposer, read when telemetry is asked for."""

    running: int
    waiting: int
    kv_cache_used_ratio: float
    shadow: ShadowAcceptance | None = None
    proposer: dict[str, float] = field(default_factory=dict)
    adaptivity: AdaptivityState | None = None
    self_checks: SelfChecks | None = None
    failures: dict[str, int] = field(default_factory=dict)
    """Of the guards of other processes: the workers'."""


@dataclass(slots=True)
class OpenStep(StepRecord):
    """A step from before its launch until its tokens are with their requests."""

    started_s: float = 0.0
    requests: list[Any] = field(default_factory=list)
    """The decoding ones."""


class Steering(ABC):
    """specctl.engine.service.Steered. Used from the scheduler's thread."""

    log: logging.Logger

    def __init__(
        self,
        capabilities: Capabilities,
        start_rows: Sequence[TableRow],
        classes: RequestClasses,
        samples: StepSampler | None = None,
    ) -> None:
        self.is_active = True
        self.capabilities = capabilities
        self.table = LiveTable(capabilities, start_rows, time.monotonic, samples)
        self.steering_s = 0.0
        self._counters = StepCounters(
            DecodeBatchBuckets(capabilities.decode_batch_max), capabilities.num_speculative_tokens_legal[-1]
        )
        self._classes = classes
        self._started_s = time.monotonic()
        self._guarded_steps = 0
        self._last_number = start_rows[0].num_speculative_tokens
        self._decoding = 0
        for warning in capabilities.warnings:
            self.log.warning("specctl: %s", warning)

    @abstractmethod
    def _gauges(self) -> Gauges:
        """Now."""

    def handle(self, operation: str, payload: str) -> str:
        """An operation of the control path, between two steps. Answers JSON; never raises."""
        return handle(self, operation, payload)

    def telemetry(self) -> EngineTelemetry:
        gauges = self._gauges()
        return EngineTelemetry(
            contract_version=CONTRACT_VERSION,
            boot_id=self.capabilities.boot_id,
            uptime_s=time.monotonic() - self._started_s,
            table_version=self.table.version,
            table_state=self.table.state,
            num_speculative_tokens=self._last_number,
            running=gauges.running,
            waiting=gauges.waiting,
            decoding=self._decoding if gauges.running else 0,
            kv_cache_used_ratio=gauges.kv_cache_used_ratio,
            cells=self._counters.cells(),
            classes=self._classes.counters.snapshot(is_idle=not gauges.running),
            shadow=gauges.shadow,
            acceptance_groups=self._classes.groups.snapshot(),
            adaptivity=gauges.adaptivity,
            self_checks=gauges.self_checks,
            guarded_steps=self._guarded_steps,
            steering_s=self.steering_s,
            proposer=gauges.proposer,
            failures=dict(GUARD.failures + Counter(gauges.failures)),
        )

    def _next_setting(self, decoding: int, context_tokens: int) -> tuple[Setting, bool]:
        """Of the next step, and whether it is a sample. Asked once for each step with decoding requests."""
        return self.table.next_step(decoding, context_tokens / decoding)

    def _count(self, step: OpenStep, ended_s: float) -> None:
        """A step whose tokens are with their requests."""
        self._counters.add(step)
        if ended_s >= self._classes.counters.due_s or step.is_sampled:
            number = step.num_speculative_tokens
            self._classes.count(number, step.requests, step.drafted, step.accepted, ended_s)
