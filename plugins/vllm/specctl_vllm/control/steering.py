"""Steers one engine's scheduler by the live table and counts its steps.

Knows vLLM's scheduler only by the attributes that ``compat.scheduler`` passes on.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import add, attrgetter
from typing import Any

from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import CLASS_LIMITS_MAX
from specctl.contract.setting import Setting
from specctl.contract.table import TableRow, uniform_rows
from specctl.contract.telemetry import ShadowAcceptance
from specctl.engine import steering
from specctl.engine.capabilities import described
from specctl.engine.guard import FAILURES_MAX, GUARD
from specctl.engine.step_sampling import StepSampler
from specctl_vllm.compat.machine import engine_version, machine_of
from specctl_vllm.compat.sampling import sampled_verification_problem
from specctl_vllm.compat.step_report import report_of
from specctl_vllm.control.adaptivity import adaptivity_of, adaptivity_state
from specctl_vllm.control.class_limits import RequestLimits
from specctl_vllm.control.open_step import OpenStep, Plan, fill
from specctl_vllm.control.request_fields import GREEDY_TEMPERATURE_MAX
from specctl_vllm.control.self_check import SelfCheck
from specctl_vllm.control.traffic_classes import RequestClasses
from specctl_vllm.methods import method_support
from specctl_vllm.options import StartTable, options_from_env, suffix_options_from_env
from specctl_vllm.patches import of_server
from specctl_vllm.report import DraftWish, Failures, WorkerReport

__all__ = ["Steering", "start_rows"]

logger = logging.getLogger("vllm.specctl")
_CHAINS_ONLY = "vLLM drafts and verifies chains: its attention knows no trees"
_GUARDED = "while a request with a temperature over 0 is in the engine, nothing is drafted for any request"
_OUTPUT = attrgetter("num_output_tokens")


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """A failure is counted by the guard, and the engine's step goes on without what the method does. What it
    takes is added to ``steering_s``."""

    @functools.wraps(method)
    def guarded(self: Steering, *args: Any) -> None:
        if not self.is_active:
            return
        started_s = time.perf_counter()
        if not GUARD.ran(method.__name__, method, self, *args):
            self._give_up(method.__name__, *args)
        self.steering_s += time.perf_counter() - started_s

    return guarded


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


class Steering(steering.Steering):
    log = logger
    self_check: SelfCheck | None = None

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._requests = scheduler.requests
        config = scheduler.vllm_config
        options = options_from_env()
        self.is_active = options is not None and config.speculative_config is not None
        if options is None or config.speculative_config is None:
            return
        self._is_async = bool(scheduler.scheduler_config.async_scheduling)
        self._sampling_problem = sampled_verification_problem()
        capabilities = self._capabilities(options.method, options.control.lease_max_s)
        rows = start_rows(options.start_table, capabilities.num_speculative_tokens_legal)
        samples = StepSampler(draft_steps=2 if self._head_rests else 1)
        super().__init__(capabilities, rows, RequestClasses(config.num_speculative_tokens), samples)
        self._limits = RequestLimits(bounds_min_tokens=not config.use_v2_model_runner)
        self._last_number = config.num_speculative_tokens
        self._shares_steps = config.parallel_config.data_parallel_size > 1
        """With the other ranks; of a dense model's rank vLLM says here that it is the only one."""
        self._ranks_decode_batch = 0
        """Of the rank that decided on the drafts that now wait."""
        self._agreed: DraftWish | None = None
        """On Model Runner V2: by the last tokens that have come."""
        self._made: int | None = None
        """Drafts that all ranks made for the step whose tokens come next; None: this rank's own number."""
        self._plan = Plan(config.num_speculative_tokens)
        self._is_guarded = False
        """The step at hand must not draft, for a sampled request's sake."""
        self._carried_s = 0.0
        """Of the drafts that now wait: seconds that the step before them took longer."""
        self._open: dict[int, OpenStep] = {}
        self._last: OpenStep | None = None
        self._ended_s = 0.0
        self._shadow: ShadowAcceptance | None = None
        self._proposer: dict[str, float] = {}
        self._verification: dict[str, float] = {}
        self._failures: Counter[str] = Counter()
        """Of the worker's guard, where it is in another process."""

    @_guarded
    def before_schedule(self) -> None:
        self._flush_if_whole()
        now_s = time.monotonic()
        self._is_guarded = self._drafts_are_unsound()
        self._guarded_steps += self._is_guarded
        # Under asynchronous scheduling the drafts are on the device, and all of them are verified.
        plan = self._plan
        number = self._last_number = plan.number if self._is_async else self._trimmed(plan)
        self._limits.cut(self.table.class_limits, self._scheduler.running)
        self._step = OpenStep(
            number,
            started_s=now_s,
            is_sampled=plan.sample is not None and number == plan.number,
            after_rest=plan.after_rest and number > 0,
            is_mixed=plan.beside_prompts or number < plan.number,
        )

    def _trimmed(self, plan: Plan) -> int:
        """Drafts that were made before the table or the batch changed, cut to what is allowed now."""
        if not plan.number:
            return 0
        running = self._scheduler.running
        contexts = [
            one.num_computed_tokens for one in running if one.num_computed_tokens >= one.num_prompt_tokens
        ]
        decode_batch = max(len(contexts), self._ranks_decode_batch)
        row = self.table.lookup_row(decode_batch, sum(contexts) / max(len(contexts), 1))
        is_sample = row.sample is not None and row.sample.setting is plan.sample
        allowed = plan.number if is_sample else row.num_speculative_tokens
        if self._must_rest():
            allowed = 0
        if allowed < plan.number:
            for request in running:
                if len(request.spec_token_ids) > allowed:
                    request.spec_token_ids = request.spec_token_ids[:allowed]
        return min(allowed, plan.number)

    @_guarded
    def after_schedule(self, scheduler_output: Any) -> None:
        step = self._step
        scheduled = scheduler_output.num_scheduled_tokens
        drafts = scheduler_output.scheduled_spec_decode_tokens
        for new in scheduler_output.scheduled_new_reqs:
            request = self._requests[new.req_id]
            self._classes.arrived(request, step.started_s)
            self._limits.arrived(request)
        self._limits.finished(scheduler_output.finished_req_ids)
        next_decoding, next_context_tokens = fill(step, self._requests, scheduled, drafts)
        self._decoding = len(step.requests)
        if scheduled:
            # Else nothing runs, and the drafts that wait go on waiting.
            plan = self._planned(step, next_decoding, next_context_tokens, scheduled)
            if self._shares_steps:
                scheduler_output.specctl_wish = DraftWish(plan.number, next_decoding, plan.sample is not None)
                plan = self._of_the_ranks(step) or plan
            self._plan = plan
            self._open[id(scheduler_output)] = step
        scheduler_output.num_spec_tokens_to_schedule = self._plan.number
        scheduler_output.specctl_min_token_prob = self._plan.min_token_prob

    def _planned(self, step: OpenStep, decoding: int, context_tokens: int, scheduled: Iterable[str]) -> Plan:
        """Of the drafts that are made at the end of ``step``, for the one after it."""
        setting, is_sample = (
            self._next_setting(decoding, context_tokens) if decoding else (self.table.lookup_row(1), False)
        )
        number = setting.num_speculative_tokens
        if (number or is_sample) and self._must_rest():
            number, is_sample = 0, False
        if number:
            number = self._wanted(number, map(self._requests.__getitem__, scheduled))
        return self._drafts_behind(step, number, setting if is_sample else None, setting.min_token_prob)

    def _drafts_behind(
        self, step: OpenStep, number: int, sample: Setting | None, min_token_prob: float | None = None
    ) -> Plan:
        after_rest = self._head_rests and number > 0 and self._plan.number == 0
        reads_prompts = (self._drafts_beside_prompts or after_rest) and step.prefill_tokens > 0
        return Plan(number, sample, min_token_prob, after_rest, beside_prompts=reads_prompts)

    def _of_the_ranks(self, step: OpenStep) -> Plan | None:
        """What all ranks take now, as they agreed when the last tokens that have come were made. None: this
        rank had no request then, or must not draft."""
        if not step.requests and not self._open:
            self._agreed, self._ranks_decode_batch = None, 0
        agreed = self._agreed
        if agreed is None or self._must_rest():
            return None
        self._ranks_decode_batch = agreed.decode_batch
        return self._drafts_behind(step, agreed.num_speculative_tokens, self._sample_of(agreed))

    @_guarded
    def before_update(self, scheduler_output: Any, model_runner_output: Any) -> None:
        step = self._open.get(id(scheduler_output))
        if step is None:
            return
        report = report_of(model_runner_output)
        step.device_s, step.made_s = report.step_s, report.draft_s
        # Another rank had planned more drafts: its passes are in this step's time.
        step.is_mixed |= self._made is not None and self._made > step.num_speculative_tokens
        self._agreed, self._made = report.agreed, report.most_planned
        if report.read_s is not None:
            step.read_s = 0.0
            if self._last is not None:
                self._last.read_s = report.read_s
        self._note_failures(report.failures)
        self._verification = report.verified_batches or self._verification
        step.emitted_tokens = -sum(map(_OUTPUT, step.requests))
        sampled = model_runner_output.sampled_token_ids
        if not sampled:
            step.accepted = [0] * len(step.requests)
            return
        rows = list(map(model_runner_output.req_id_to_index.__getitem__, step.request_ids))
        numbers = map(len, map(sampled.__getitem__, rows))
        step.accepted = [number - 1 if number else 0 for number in numbers]
        if report.rejected is not None:
            verified = map(add, step.accepted, map(report.rejected.__getitem__, rows))
            step.drafted = list(map(min, step.drafted, verified))

    @_guarded
    def after_update(self, scheduler_output: Any) -> None:
        step = self._open.pop(id(scheduler_output), None)
        if step is None:
            return
        self._flush()
        step.emitted_tokens += sum(map(_OUTPUT, step.requests))
        step.ended_s = time.monotonic()
        self._last = step

    @_guarded
    def drafts_arrived(self, report: WorkerReport | None) -> None:
        """The end of a synchronous step; under asynchronous scheduling this is not called."""
        step = self._last
        if step is not None:
            step.ended_s = time.monotonic()
        if report is None:
            return
        self._note_failures(report.failures)
        self._shadow = report.shadow or self._shadow
        self._proposer = report.proposer or self._proposer
        if report.agreed is not None:
            self._adopt(report.agreed)
        if step is not None:
            step.made_s, step.verify_s = report.draft_s, report.verify_s

    def _adopt(self, agreed: DraftWish) -> None:
        """The drafts that now wait were made by another rank's wish, or by this one's."""
        number, sample = agreed.num_speculative_tokens, self._sample_of(agreed)
        self._plan = replace(self._plan, number=number, sample=sample)
        self._ranks_decode_batch = agreed.decode_batch

    def _sample_of(self, agreed: DraftWish) -> Setting | None:
        """None: the ranks did not agree on a sample, or by another table."""
        sample = self.table.lookup_row(agreed.decode_batch).sample
        if not agreed.is_sample or sample is None:
            return None
        is_same = sample.setting.num_speculative_tokens == agreed.num_speculative_tokens
        return sample.setting if is_same else None

    def _give_up(self, failed: str, scheduler_output: Any = None, *_: Any) -> None:
        """The step at hand is not counted; where its drafts could not be planned, it makes none."""
        self._last = None
        self._open.pop(id(scheduler_output), None)
        if failed == "before_schedule":
            self._is_guarded = True
            self._step = OpenStep(self._plan.number, started_s=time.monotonic())
        if failed == "after_schedule":
            self._plan = Plan(0)
            scheduler_output.num_spec_tokens_to_schedule = 0

    def _gauges(self) -> steering.Gauges:
        self._flush_if_whole()
        self.check_answers(lambda check: check.begin())
        scheduler, check = self._scheduler, self.self_check
        return steering.Gauges(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting),
            kv_cache_used_ratio=scheduler.kv_cache_manager.usage,
            shadow=self._shadow,
            adaptivity=adaptivity_state(scheduler.vllm_config, self.capabilities.adaptivity),
            self_checks=None if check is None else check.counts,
            proposer=self._proposer | self._verification,
            failures=dict(self._failures),
        )

    def check_answers(self, part: Callable[[SelfCheck], object]) -> None:
        """A part of the check of answers, where there is one. Its first failure ends it."""
        if self.self_check is not None and not GUARD.ran("self_check", part, self.self_check):
            self.self_check = None

    def _flush_if_whole(self) -> None:
        """Now, unless a part of its seconds is reported with the next step's tokens."""
        if self._last is not None and (self._last.read_s is None or not self._open):
            self._flush()

    def _flush(self) -> None:
        step, self._last = self._last, None
        if step is None:
            return
        # Under asynchronous scheduling a step is scheduled while the one before it still runs.
        step.step_s = step.ended_s - max(step.started_s, self._ended_s)
        if step.started_s < self._ended_s and step.device_s is not None:
            step.step_s = step.device_s
        self._ended_s = step.ended_s
        # Drafts are made at the end of one step, by the setting of the next one, which verifies them: their
        # seconds are moved there. A worker that does not report them (Model Runner V2) ends a step before it
        # drafts, so that they are in the next step's time already.
        made_s = step.made_s or 0.0
        step.step_s += self._carried_s - made_s + (step.read_s or 0.0)
        step.draft_s, self._carried_s = self._carried_s, made_s
        self._count(step, step.ended_s)

    def _wanted(self, number: int, requests: Iterable[Any]) -> int:
        """Drafts that somebody can use: the legal number next to the largest limit, where all have one."""
        most = self._limits.most(self.table.class_limits, requests)
        if most is None or most >= number:
            return number
        legal = self.capabilities.num_speculative_tokens_legal
        return next((fewer for fewer in legal if most <= fewer < number), number)

    def _note_failures(self, failures: Failures | None) -> None:
        if failures is not None:
            self._failures = failures.elsewhere()

    def _must_rest(self) -> bool:
        """Whether drafts are unsound, or too much of ours has failed, here or in the worker."""
        return self._is_guarded or GUARD.is_resting or self._failures.total() >= FAILURES_MAX

    def _drafts_are_unsound(self) -> bool:
        """Whether a sampled request is in an engine that verifies those wrongly."""
        return self._sampling_problem is not None and any(
            request.sampling_params is not None
            and request.sampling_params.temperature >= GREEDY_TEMPERATURE_MAX
            for request in self._requests.values()
        )

    def _capabilities(self, method: str, lease_max_s: float) -> Capabilities:
        config = self._scheduler.vllm_config
        speculative = config.speculative_config
        support = method_support(
            method,
            speculative.method,
            speculative.num_speculative_tokens,
            # A dense model's rank is an engine of its own, and reads 1 here.
            ranks_in_step=config.parallel_config.data_parallel_size,
            is_on_device=config.use_v2_model_runner,
            is_async=self._is_async,
            has_one_pass=speculative.parallel_drafting or speculative.use_multi_module_mtp(),
        )
        self._head_rests = support.head_rests
        self._drafts_beside_prompts = support.drafts_beside_prompts
        problem = self._sampling_problem
        warnings = [] if problem is None else [f"{problem}; {_GUARDED}"]
        can_weigh, suffix = support.can_weigh_tokens, suffix_options_from_env()
        patches = of_server(config.use_v2_model_runner, options_from_env())
        return described(
            [Setting(num_speculative_tokens=number) for number in support.legal],
            support.why_not_controllable,
            self._scheduler.scheduler_config.max_num_seqs,
            # Batches in flight beside each other: the drafts of one are not verified by the next step.
            can_sample=config.parallel_config.pipeline_parallel_size == 1,
            engine="vllm",
            engine_version=engine_version(),
            model=str(config.model_config.served_model_name or config.model_config.model),
            method=method,
            why_chains_only=_CHAINS_ONLY,
            context_max_tokens=config.model_config.max_model_len,
            lease_max_s=lease_max_s,
            has_shadow_acceptance=support.has_shadow_acceptance,
            min_token_prob=suffix.min_token_prob if can_weigh else None,
            drafts_from_outputs=support.has_corpus and suffix.use_global,
            class_limits_max=CLASS_LIMITS_MAX if support.why_not_controllable is None else 0,
            adaptivity=adaptivity_of(speculative, is_steered=support.why_not_controllable is None),
            warnings=tuple(warnings),
            patches=tuple(patch.target for patch in patches),
            **machine_of(self._scheduler),
        )
