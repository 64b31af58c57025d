"""Steers one SGLang scheduler by the live table and counts its steps.

Knows SGLang's batches and results by a few attributes. Nothing here may bring the engine down: an unexpected
error is logged once, the table stops being looked up, and every step drafts what the server was started with.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

from specctl.contract import CONTRACT_VERSION
from specctl.contract.buckets import DecodeBatchBuckets
from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import KIND_KEY, ClassKey
from specctl.contract.table import uniform_rows
from specctl.contract.telemetry import ShadowAcceptance, Telemetry
from specctl.engine.live_table import LiveTable
from specctl.engine.never_fatal import never_fatal
from specctl.engine.service import handle
from specctl.engine.step_counters import StepCounters, StepRecord
from specctl.engine.traffic_classes import RequestClasses, key_of
from specctl_sglang.terms import namespace_of

__all__ = ["OpenStep", "Proposer", "SchedulerView", "Steering"]

logger = logging.getLogger("sglang.specctl")


class SchedulerView(Protocol):
    """The scheduler's gauges (compat.scheduler)."""

    def running(self) -> int: ...

    def waiting(self) -> int: ...

    def kv_cache_used_ratio(self) -> float: ...

    def verified_batches(self) -> dict[str, float]:
        """By whom batches of drafts were verified, and why not by us."""
        ...


class Proposer(Protocol):
    """What a worker tells of its own; the telemetry asks for it."""

    def shadow_counts(self) -> ShadowAcceptance | None: ...

    def stats(self) -> dict[str, float]: ...


@dataclass(slots=True)
class OpenStep:
    """A step from before its launch until its tokens have come back. The worker fills in what it drafted."""

    num_speculative_tokens: int
    branches: int
    started_s: float
    requests: list[Any] = field(default_factory=list)
    """The decoding ones; empty: a step of prompts."""
    drafted: list[int] = field(default_factory=list)
    min_token_prob: float | None = None
    """A place for one more draft of every request must bring as much of a token each; None: no matter."""
    context_tokens: int = 0
    prefill_tokens: int = 0
    draft_s: float = 0.0
    run_s: float = 0.0
    """Until its launch came back: where that is its computation too."""
    result_from_s: float = 0.0
    output_tokens_before: int = 0
    is_guarded: bool = False


_never_fatal = never_fatal("specctl stops steering this engine; it drafts what it was started with")


class Steering:
    """specctl.engine.service.Steered. Used from the scheduler's thread."""

    log = logger

    def __init__(
        self,
        capabilities: Capabilities,
        view: SchedulerView,
        proposer: Proposer | None,
        at_start: tuple[int, int] | None = None,
        *,
        computes_at_launch: bool = False,
    ) -> None:
        """at_start: num_speculative_tokens and tree_topk until a table comes; None: the longest chain.

        computes_at_launch: a launch comes back when its step is computed (on a CPU), while the step before it
        still waits for its result: the time between two results would be the next step's.
        """
        self.is_active = True
        self.capabilities = capabilities
        self._view, self._proposer = view, proposer
        self._computes_at_launch = computes_at_launch
        self._full = capabilities.num_speculative_tokens_legal[-1]
        first = at_start or (self._full, 1)
        self.table = LiveTable(capabilities, uniform_rows(*first), time.monotonic)
        self._counters = StepCounters(DecodeBatchBuckets(capabilities.decode_batch_max), self._full)
        self._classes = RequestClasses(self._full, _class_key, _context_tokens)
        self._started_s = time.monotonic()
        self._ended_s = 0.0
        self._last_number = first[0]
        self._decoding = 0
        self._guarded_steps = 0
        self.steering_s = 0.0
        self.current: OpenStep | None = None
        for warning in capabilities.warnings:
            logger.warning("specctl: %s", warning)

    def handle(self, operation: str, payload: str) -> str:
        """An operation of the control path, between two steps. Answers JSON; never raises."""
        return handle(self, operation, payload)

    @_never_fatal
    def before_run(self, batch: Any) -> None:
        """A batch is about to be launched: what may be drafted for it stands in ``current``."""
        self.current = None
        now_s = time.monotonic()
        if batch.forward_mode.is_decode():
            requests = list(batch.reqs)
            context = sum(map(_context_tokens, requests))
            row = self.table.lookup_row(len(requests), context / max(len(requests), 1))
            step = OpenStep(row.num_speculative_tokens, row.tree_topk, now_s, requests)
            step.min_token_prob, step.context_tokens = row.min_token_prob, context
            step.drafted = [row.num_speculative_tokens] * len(requests)
        else:
            step = OpenStep(0, 1, now_s, prefill_tokens=batch.extend_num_tokens or 0)
            for request in batch.reqs:
                if not hasattr(request, "specctl_class"):
                    self._classes.arrived(request, now_s)
        self.current = step

    @_never_fatal
    def after_run(self, result: Any) -> None:
        """The batch is under way; its result comes back later, maybe after the next launch."""
        if self.current is not None:
            self.current.run_s = time.monotonic() - self.current.started_s
            result.specctl_step = self.current

    @_never_fatal
    def before_result(self, result: Any) -> None:
        step = getattr(result, "specctl_step", None)
        if step is not None:
            step.result_from_s = time.monotonic()
            step.output_tokens_before = sum(map(_output_tokens, step.requests))

    @_never_fatal
    def after_result(self, result: Any) -> None:
        """The step's tokens are with their requests."""
        step = getattr(result, "specctl_step", None)
        if step is None:
            return
        now_s = time.monotonic()
        step_s = self._seconds_of(step, now_s)
        self._ended_s = now_s
        if step.prefill_tokens:
            self._counters.add_prompts(step.prefill_tokens, step_s)
        accepted = result.num_correct_drafts_per_req_cpu
        if not step.requests or accepted is None:
            return
        self._guarded_steps += step.is_guarded
        self._last_number, self._decoding = step.num_speculative_tokens, len(step.requests)
        # An engine that fills up short drafts may accept what was not ours; it is not counted as ours.
        accepted = list(map(min, accepted, step.drafted))
        # The overlap scheduler launches a step more for a request before it knows that it has ended: that one
        # was computed and verified, and emits nothing.
        emitted = sum(map(_output_tokens, step.requests)) - step.output_tokens_before
        self._counters.add(
            StepRecord(
                num_speculative_tokens=step.num_speculative_tokens,
                drafted=step.drafted,
                accepted=accepted,
                emitted_tokens=emitted,
                context_tokens=step.context_tokens,
                prefill_tokens=0,
                step_s=step_s,
                draft_s=step.draft_s,
            )
        )
        if now_s >= self._classes.counters.due_s:
            self._classes.count(step.num_speculative_tokens, step.requests, step.drafted, accepted, now_s)

    def _seconds_of(self, step: OpenStep, now_s: float) -> float:
        if self._computes_at_launch:
            return step.run_s + now_s - step.result_from_s
        return now_s - max(step.started_s, self._ended_s)

    def telemetry(self) -> Telemetry:
        running = self._view.running()
        proposer = self._proposer
        return Telemetry(
            contract_version=CONTRACT_VERSION,
            boot_id=self.capabilities.boot_id,
            uptime_s=time.monotonic() - self._started_s,
            table_version=self.table.version,
            table_state=self.table.state,
            num_speculative_tokens=self._last_number,
            running=running,
            waiting=self._view.waiting(),
            decoding=self._decoding if running else 0,
            kv_cache_used_ratio=self._view.kv_cache_used_ratio(),
            cells=self._counters.cells(),
            classes=self._classes.counters.told(is_idle=not running),
            shadow=None if proposer is None else proposer.shadow_counts(),
            guarded_steps=self._guarded_steps,
            steering_s=self.steering_s,
            proposer=self._view.verified_batches() | ({} if proposer is None else proposer.stats()),
        )


def _output_tokens(request: Any) -> int:
    """Without what was accepted after the end of the answer."""
    ended = request.finished_len
    return len(request.output_ids) if ended is None else min(ended, len(request.output_ids))


def _context_tokens(request: Any) -> int:
    return len(request.origin_input_ids) + len(request.output_ids)


def _class_key(request: Any) -> ClassKey:
    told = request.sampling_params.custom_params
    kind = told.get(KIND_KEY) if isinstance(told, dict) else None
    return key_of(namespace_of(request.lora_id, request.extra_key), kind, _context_tokens(request))
