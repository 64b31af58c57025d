"""The scheduler's part: reads the table before each batch, counts what came of it, answers the routes.

Reason for the hooks on Scheduler (SGLang's own seam for them): a spec worker sees its own batches only,
neither of prompts nor of what became of the tokens, and there is no operation that reaches the scheduler with
more than numbers.
"""

from __future__ import annotations

import functools
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.managers.io_struct import AbortReq, GetInternalStateReqOutput
from sglang.srt.runtime_context import get_parallel, get_spec
from sglang.version import __version__ as engine_version

from specctl.contract.adaptivity import AdaptivityState, EngineAdaptivity
from specctl.contract.capabilities import Capabilities
from specctl.contract.classes import CLASS_LIMITS_MAX
from specctl.engine.capabilities import described
from specctl.engine.guard import GUARD
from specctl_sglang.asked import misfits
from specctl_sglang.compat import hooks, verified_batches
from specctl_sglang.compat.adaptivity import adaptivity_of, adaptivity_state
from specctl_sglang.compat.algorithms import why_as_stock
from specctl_sglang.compat.device_clock import DeviceSpan
from specctl_sglang.compat.machine import machine_of
from specctl_sglang.compat.mark import MARK
from specctl_sglang.compat.rank_agreement import AGREEMENT, Wish
from specctl_sglang.compat.releases import has_dp_attention, rank_of, ranks_of
from specctl_sglang.compat.steered import Steered
from specctl_sglang.control.self_check import KeptAnswers
from specctl_sglang.control.steering import Steering
from specctl_sglang.method_options import method_options
from specctl_sglang.methods import MethodSupport, method_support
from specctl_sglang.options import Options, options_from_env
from specctl_sglang.terms import PEAGLE, SUFFIX, method_of

__all__ = ["wrap_get_internal_state", "wrap_init", "wrap_process_batch_result", "wrap_run_batch"]

logger = logging.getLogger("sglang.specctl")
_LOST = "this SGLang lacks what its steering needs; the server's log names it"
_FAILED = json.dumps({"status": 500, "body": {"error": "failed", "message": "see the server's log"}})


def wrap_init(original: Any) -> Any:
    def init(scheduler: Any, *args: Any, **kwargs: Any) -> None:
        original(scheduler, *args, **kwargs)
        scheduler.specctl = None
        GUARD.call("Scheduler.__init__", None, _steer, scheduler)

    return init


def wrap_run_batch(original: Any) -> Any:
    def run_batch(scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(scheduler, "specctl", None) is None:
            return original(scheduler, batch, *args, **kwargs)
        steering = scheduler.specctl
        if not _guarded("Scheduler.run_batch", steering, _before_launch, scheduler, batch):
            steering.current = None
        result = original(scheduler, batch, *args, **kwargs)
        if not _guarded("Scheduler.run_batch", steering, _launched, scheduler, batch, result):
            _forget(scheduler, batch)
        return result

    return run_batch


def wrap_process_batch_result(original: Any) -> Any:
    entry = "Scheduler.process_batch_result"

    def process_batch_result(scheduler: Any, batch: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
        steering = getattr(scheduler, "specctl", None)
        if steering is None:
            return original(scheduler, batch, result, *args, **kwargs)
        if not _guarded(entry, steering, steering.before_result, result):
            result.specctl_step = None
        answer = original(scheduler, batch, result, *args, **kwargs)
        _guarded(entry, steering, steering.after_result, result)
        return answer

    return process_batch_result


def wrap_get_internal_state(original: Any) -> Any:
    """SGLang sends the request to every scheduler of the server and runs it between two batches."""

    def get_internal_state(scheduler: Any, recv_req: Any) -> Any:
        if not (recv_req.rid or "").startswith(MARK):
            return original(scheduler, recv_req)
        failed = GetInternalStateReqOutput(internal_state={"specctl": _FAILED})
        return GUARD.call("Scheduler.get_internal_state", failed, _answered, scheduler, recv_req)

    return get_internal_state


def _guarded(entry: str, steering: Steering, function: Callable[..., None], *args: Any) -> bool:
    """Whether it came to its end."""
    started_s = time.perf_counter()
    is_done = GUARD.ran(entry, function, *args)
    steering.steering_s += time.perf_counter() - started_s
    return is_done


def _forget(scheduler: Any, batch: Any) -> None:
    """What was launched is asked of the device alone."""
    relay = getattr(scheduler.future_map, "specctl_relay", None)
    if relay is not None and batch.req_pool_indices_cpu is not None:
        relay.forget(batch.req_pool_indices_cpu)


def _steer(scheduler: Any) -> None:
    worker = scheduler.draft_worker
    options = options_from_env()
    is_ours = _is_steered(worker)
    if worker is None or (options is None and not is_ours):
        return
    problem = hooks.why_not_in_force()
    if problem is not None:
        logger.error("specctl does not steer this engine, which drafts what it was started with: %s", problem)
        return
    capabilities = _capabilities(scheduler, options or Options())
    proposer = worker if is_ours else None
    at_start = worker.at_start if is_ours else None
    on_cpu = str(scheduler.device) == "cpu"
    view = _View(scheduler)
    answers = _kept_answers(scheduler, view, options or Options())
    new_span = None
    if scheduler.enable_overlap and torch.device(scheduler.device).type == "cuda":
        new_span = functools.partial(DeviceSpan, scheduler.forward_stream)
    steering = Steering(
        capabilities, view, proposer, at_start, answers=answers, computes_at_launch=on_cpu, new_span=new_span
    )
    scheduler.specctl = steering
    if is_ours:
        worker.specctl = steering
        worker.host_relay = getattr(scheduler.future_map, "specctl_relay", None)
        if has_dp_attention(get_parallel()):
            AGREEMENT.ask = functools.partial(_wish, scheduler)


def _wish(scheduler: Any, batch: Any) -> Wish:
    """What this rank's table says of a decode batch, before ranks that share a step agree on it."""
    scheduler.specctl.before_run(batch)
    return scheduler.draft_worker.wish(batch)


def _kept_answers(scheduler: Any, view: _View, options: Options) -> KeptAnswers | None:
    """Data-parallel ranks share the process that would decode an answer again."""
    if not options.checks_answers(ranks_of(scheduler.server_args)):
        return None

    def end(request_id: str) -> None:
        scheduler.abort_request(AbortReq(rid=request_id))

    def is_idle() -> bool:
        return view.running() + view.waiting() == 0

    return KeptAnswers(options.verify_shadow_ratio, str(scheduler.model_config.dtype), is_idle, end)


def _before_launch(scheduler: Any, batch: Any) -> None:
    # The step of a decode batch that ranks agree on is open.
    if AGREEMENT.ask is None or not batch.forward_mode.is_decode():
        scheduler.specctl.before_run(batch)
    if _is_steered(scheduler.draft_worker):
        scheduler.draft_worker.before_launch(batch)


def _launched(scheduler: Any, batch: Any, result: Any) -> None:
    if _is_steered(scheduler.draft_worker):
        scheduler.draft_worker.launched(batch, result)
    scheduler.specctl.after_run(result)


def _answered(scheduler: Any, recv_req: Any) -> Any:
    asked = json.loads(recv_req.rid.removeprefix(MARK))
    rank = rank_of(get_parallel())
    answer: dict[str, Any] = {"specctl_rank": rank}
    if asked["rank"] == rank:
        steering = getattr(scheduler, "specctl", None)
        answer["specctl"] = (
            _not_steered() if steering is None else steering.handle(asked["operation"], asked["payload"])
        )
    return GetInternalStateReqOutput(internal_state=answer)


def _is_steered(worker: Any) -> bool:
    return isinstance(worker, Steered)


def _not_steered() -> str:
    message = (
        "this server was not started with an algorithm of specctl, nor with SPECCTL_SGLANG_OPTIONS for "
        "one of SGLang's own; see the server's log"
    )
    body = {"error": "not_steered", "message": message, "algorithms": [SUFFIX, PEAGLE]}
    return json.dumps({"status": 503, "body": body})


class _View:
    """specctl_sglang.control.steering.SchedulerView."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler

    def running(self) -> int:
        scheduler = self._scheduler
        running = {id(request) for request in scheduler.running_batch.reqs}
        last = scheduler.last_batch
        if last is not None:
            running |= {id(request) for request in last.reqs if not request.finished()}
        return len(running)

    def waiting(self) -> int:
        return len(self._scheduler.waiting_queue)

    def kv_cache_used_ratio(self) -> float:
        scheduler = self._scheduler
        free = scheduler.token_to_kv_pool_allocator.available_size() + scheduler.tree_cache.evictable_size()
        total = scheduler.max_total_num_tokens
        return min(max(1.0 - free / total, 0.0), 1.0) if total else 0.0

    def verified_batches(self) -> dict[str, float]:
        return verified_batches.snapshot()

    def adaptivity(self, known: EngineAdaptivity | None) -> AdaptivityState | None:
        return adaptivity_state(self._scheduler.draft_worker, known)


def _support(scheduler: Any) -> MethodSupport:
    worker, name = scheduler.draft_worker, scheduler.spec_algorithm.name
    spec = get_spec()
    at_start = spec.speculative_num_steps, spec.speculative_eagle_topk or 1, spec.speculative_num_draft_tokens
    if _is_steered(worker):
        return method_support(name, at_start, worker.shapes)
    is_lost = method_of(name) in misfits()
    return method_support(name, at_start, None, _LOST if is_lost else why_as_stock(type(worker).__name__))


def _capabilities(scheduler: Any, options: Options) -> Capabilities:
    support = _support(scheduler)
    server_args = scheduler.server_args
    is_suffix = scheduler.spec_algorithm.name == SUFFIX
    return described(
        support.settings,
        support.why_not_controllable,
        scheduler.max_running_requests,
        engine="sglang",
        engine_version=engine_version,
        model=str(server_args.served_model_name or server_args.model_path),
        method=method_of(scheduler.spec_algorithm.name),
        why_chains_only=support.why_chains_only,
        context_max_tokens=scheduler.model_config.context_len,
        lease_max_s=options.lease_max_s,
        class_limits_max=CLASS_LIMITS_MAX if support.why_not_controllable is None else 0,
        has_shadow_acceptance=is_suffix,
        # Without a row's word the longest draft of a batch decides how many are verified.
        min_token_prob=0.0 if is_suffix else None,
        drafts_from_outputs=options.suffix.use_global
        if is_suffix
        else scheduler.spec_algorithm.name == "NGRAM",
        adaptivity=adaptivity_of(
            get_spec(), scheduler.spec_algorithm.name, is_steered=_is_steered(scheduler.draft_worker)
        ),
        algorithms=(SUFFIX, PEAGLE),
        method_options=method_options(scheduler.spec_algorithm.name, get_spec()),
        warnings=support.warnings(scheduler.device),
        patches=tuple(hooks.in_force()),
        **machine_of(scheduler),
    )
