"""Steers one SGLang scheduler by the live table and counts its steps.

Knows SGLang's batches and results by a few attributes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from specctl.contract.adaptivity import AdaptivityState, EngineAdaptivity
from specctl.contract.capabilities import Capabilities
from specctl.contract.table import TableRow, legal_settings
from specctl.contract.telemetry import ShadowAcceptance
from specctl.engine import steering
from specctl.engine.namespaces import namespace_of
from specctl.engine.request_classes import ClassKey
from specctl.engine.step_sampling import StepSampler
from specctl.engine.traffic_classes import RequestClasses, key_of
from specctl_sglang.control.draft_limits import DraftLimits, penalty_limits
from specctl_sglang.control.request_fields import request_kind
from specctl_sglang.control.self_check import KeptAnswers
from specctl_sglang.proposers.layout import Drafts
from specctl_sglang.proposers.ranks import ranks_of_nodes, ranks_of_tokens
from specctl_sglang.terms import Shape, chain, setting_of

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

    def adaptivity(self, known: EngineAdaptivity | None) -> AdaptivityState | None:
        """Of SGLang's own, now."""
        ...


class Proposer(Protocol):
    """What a worker tells of its own; the telemetry asks for it."""

    def shadow_counts(self) -> ShadowAcceptance | None: ...

    def stats(self) -> dict[str, float]: ...


class Span(Protocol):
    """Of a step, on the device."""

    def end(self) -> None:
        """The step was launched."""
        ...

    def seconds(self, before: Any) -> float:
        """From the end of another one that was still under way when it began, or else from its own start."""
        ...


@dataclass(slots=True)
class OpenStep(steering.OpenStep):
    """Without requests: a step of prompts. The worker fills in what it drafted."""

    min_token_prob: float | None = None
    """A place for one more draft of every request must bring as much of a token each; None: no matter."""
    run_s: float = 0.0
    """Until its launch came back: where that is its computation too."""
    result_from_s: float = 0.0
    span: Span | None = None
    """None: the host's clock tells its seconds."""
    output_tokens_before: int = 0
    is_guarded: bool = False
    limits: list[int] | None = None
    """Most drafts of each request; None: the step's number for all."""
    tree: Drafts | None = None
    """Of drafts that were laid out on the host."""

    def take(self, shape: Shape) -> None:
        self.num_speculative_tokens, self.tree_topk, self.verify_width_tokens = shape
        self.drafted = [self.num_speculative_tokens] * len(self.requests)


class Steering(steering.Steering):
    log = logger

    def __init__(
        self,
        capabilities: Capabilities,
        view: SchedulerView,
        proposer: Proposer | None,
        at_start: Shape | None = None,
        *,
        answers: KeptAnswers | None = None,
        computes_at_launch: bool = False,
        new_span: Callable[[], Span] | None = None,
    ) -> None:
        """at_start: until a table comes; None: the longest chain, or what there is instead. answers: of which
        some are checked; None: nothing is.

        computes_at_launch: a launch comes back when its step is computed (on a CPU), while the step before it
        still waits for its result: the time between two results would be the next step's.

        new_span: where launches run ahead on a device. The time between two results would hold the launch of
        the next step.
        """
        longest, legal = capabilities.num_speculative_tokens_legal[-1], legal_settings(capabilities)
        first = setting_of(at_start or chain(longest))
        if first not in legal:
            first = legal[-1]
        rows = (TableRow(decode_batch_from=1, **first.model_dump()),)
        classes = RequestClasses(longest, _class_key, _context_tokens)
        # Where launches run ahead, the first step without drafts waits for the host, and those behind it do
        # not: it would tell too much of a step at 0 drafts. A P-EAGLE head rests at 0, others read along.
        samples = StepSampler(
            off_steps=1 if computes_at_launch else 2,
            draft_steps=2 if capabilities.method == "specctl_peagle" else 1,
        )
        super().__init__(capabilities, rows, classes, samples)
        self._view, self._proposer, self._answers = view, proposer, answers
        self._computes_at_launch, self._new_span = computes_at_launch, new_span
        self._ended_s = 0.0
        self._last_span: Span | None = None
        self._limits = DraftLimits(_class_key)
        self._penalty_request_steps = 0
        self._drafted_before = False
        """In the decode step before."""
        self.current: OpenStep | None = None

    def handle(self, operation: str, payload: str) -> str:
        answer = None if self._answers is None else self._answers.handle(operation, payload)
        return super().handle(operation, payload) if answer is None else answer

    def limits_of(self, requests: Sequence[Any], sampling: Any, number: int) -> list[int] | None:
        """Most drafts of each request of a step; None: ``number`` for all. sampling: the batch's."""
        limits = penalty_limits(requests, sampling, number)
        if limits is not None:
            self._count_penalties(limits.count(0))
        others = self._limits.of(self.table.class_limits, requests, number)
        if limits is None or others is None:
            return others if limits is None else limits
        return list(map(min, limits, others))

    def _count_penalties(self, requests: int) -> None:
        """So many requests of a step get no drafts because of their penalties."""
        if requests and not self._penalty_request_steps:
            self.log.warning(
                "specctl: requests with repetition_penalty, presence_penalty, frequency_penalty or unmet "
                "min_new_tokens get no drafts: SGLang verifies drafts with the penalties of the step before"
            )
        self._penalty_request_steps += requests

    def before_run(self, batch: Any) -> None:
        """A batch is about to be launched: what may be drafted for it stands in ``current``."""
        self.current = None
        if self._answers is not None:
            self._answers.before_step(batch.reqs)
        now_s = time.monotonic()
        if batch.forward_mode.is_decode():
            requests = list(batch.reqs)
            context = sum(map(_context_tokens, requests))
            setting, is_sampled = self._next_setting(len(requests), context)
            step = OpenStep(started_s=now_s, requests=requests, context_tokens=context)
            step.run_under(setting)
            step.is_sampled, step.min_token_prob = is_sampled, setting.min_token_prob
            step.after_rest = self._is_first_off(setting.num_speculative_tokens)
            step.drafted = [setting.num_speculative_tokens] * len(requests)
            step.verified_tokens = setting.width_tokens * len(requests)
        else:
            step = OpenStep(started_s=now_s, prefill_tokens=batch.extend_num_tokens or 0)
            for request in batch.reqs:
                if not hasattr(request, "specctl_class"):
                    self._classes.arrived(request, now_s)
                    self._limits.arrived(request)
        step.span = None if self._new_span is None else self._new_span()
        self.current = step

    def after_run(self, result: Any) -> None:
        """The batch is under way; its result comes back later, maybe after the next launch."""
        if self.current is not None:
            self.current.run_s = time.monotonic() - self.current.started_s
            if self.current.span is not None:
                self.current.span.end()
            if self.current.requests:
                self._drafted_before = self.current.num_speculative_tokens > 0
            result.specctl_step = self.current

    def _is_first_off(self, number: int) -> bool:
        """Whether a step at this number is the first without drafts, whose seconds are its own."""
        return number == 0 and self._drafted_before and not self._computes_at_launch

    def before_result(self, result: Any) -> None:
        step = getattr(result, "specctl_step", None)
        if step is None:
            self._last_span = None
        else:
            step.result_from_s = time.monotonic()
            step.output_tokens_before = sum(map(_output_tokens, step.requests))

    def after_result(self, result: Any) -> None:
        """The step's tokens are with their requests."""
        step = getattr(result, "specctl_step", None)
        if step is None:
            return
        if self._answers is not None:
            self._answers.after_step(step.requests)
        now_s = time.monotonic()
        step.step_s = self._seconds_of(step, now_s)
        self._ended_s, self._last_span = now_s, step.span
        if step.prefill_tokens:
            self._counters.add_prompts(step.prefill_tokens, step.step_s)
        accepted = result.num_correct_drafts_per_req_cpu
        if not step.requests or accepted is None:
            return
        self._guarded_steps += step.is_guarded
        self._last_number, self._decoding = step.num_speculative_tokens, len(step.requests)
        # An engine that fills up short drafts may accept what was not ours; it is not counted as ours.
        step.accepted = list(map(min, accepted, step.drafted))
        # The overlap scheduler launches a step more for a request before it knows that it has ended: that one
        # was computed and verified, and emits nothing.
        step.emitted_tokens = sum(map(_output_tokens, step.requests)) - step.output_tokens_before
        step.accepted_ranks = _ranks(step, result)
        self._count(step, now_s)

    def _seconds_of(self, step: OpenStep, now_s: float) -> float:
        if self._computes_at_launch:
            return step.run_s + now_s - step.result_from_s
        if step.span is not None:
            return step.span.seconds(self._last_span if step.started_s < self._ended_s else None)
        return now_s - max(step.started_s, self._ended_s)

    def _gauges(self) -> steering.Gauges:
        view, proposer = self._view, self._proposer
        return steering.Gauges(
            running=view.running(),
            waiting=view.waiting(),
            kv_cache_used_ratio=view.kv_cache_used_ratio(),
            adaptivity=view.adaptivity(self.capabilities.adaptivity),
            self_checks=None if self._answers is None else self._answers.counts,
            shadow=None if proposer is None else proposer.shadow_counts(),
            proposer={"penalty_request_steps": float(self._penalty_request_steps)}
            | view.verified_batches()
            | ({} if proposer is None else proposer.stats()),
        )


def _ranks(step: OpenStep, result: Any) -> npt.NDArray[np.int64] | None:
    """Of a tree's accepted tokens, where its result has them; everything is on the host by now."""
    if step.tree_topk == 1:
        return None
    shape, accepted = (step.num_speculative_tokens, step.tree_topk), np.array(step.accepted)
    path = getattr(result, "specctl_accepted", None)
    if path is not None:
        return ranks_of_nodes(path.made.numpy(), path.nodes.numpy(), accepted, shape)
    if step.tree is None:
        return None
    emitted = result.next_token_ids.cpu().numpy().reshape(len(accepted), -1)
    return ranks_of_tokens(step.tree, emitted, accepted, shape)


def _output_tokens(request: Any) -> int:
    """Without what was accepted after the end of the answer."""
    ended = request.finished_len
    return len(request.output_ids) if ended is None else min(ended, len(request.output_ids))


def _context_tokens(request: Any) -> int:
    return len(request.origin_input_ids) + len(request.output_ids)


def _class_key(request: Any) -> ClassKey:
    namespace = namespace_of(request.lora_id, request.extra_key)
    return key_of(namespace, request_kind(request), _context_tokens(request))
