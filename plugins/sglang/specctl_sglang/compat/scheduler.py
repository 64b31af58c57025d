"""The scheduler's part: reads the table before each batch, counts what came of it, answers the routes.

Reason for the hooks on Scheduler (SGLang's own seam for them): a spec worker sees its own batches only,
neither of prompts nor of what became of the tokens, and there is no operation that reaches the scheduler with
more than numbers.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from sglang.srt.managers.io_struct import GetInternalStateReqOutput
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_parallel, get_spec
from sglang.version import __version__ as engine_version

from specctl.contract.capabilities import Capabilities
from specctl.engine.capabilities import described
from specctl_sglang.compat import verified_batches
from specctl_sglang.compat.algorithms import why_as_stock
from specctl_sglang.compat.machine import machine_of
from specctl_sglang.compat.mark import MARK
from specctl_sglang.compat.steered import Steered
from specctl_sglang.control.steering import Steering
from specctl_sglang.methods import MethodSupport, method_support
from specctl_sglang.options import Options, options_from_env
from specctl_sglang.terms import PEAGLE, SUFFIX, method_of

__all__ = ["install"]

logger = logging.getLogger("sglang.specctl")
_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"


def install() -> None:
    """In each process that may build a scheduler, before it does."""
    HookRegistry.register(f"{_SCHEDULER}.__init__", _steer, HookType.AROUND)
    HookRegistry.register(f"{_SCHEDULER}.run_batch", _run_batch, HookType.AROUND)
    HookRegistry.register(f"{_SCHEDULER}.process_batch_result", _process_batch_result, HookType.AROUND)
    HookRegistry.register(f"{_SCHEDULER}.get_internal_state", _get_internal_state, HookType.AROUND)


def _steer(original: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    original(scheduler, *args, **kwargs)
    scheduler.specctl = None
    worker = scheduler.draft_worker
    options = options_from_env()
    is_ours = _is_steered(worker)
    if worker is None or (options is None and not is_ours):
        return
    try:
        capabilities = _capabilities(scheduler, options or Options())
        proposer = worker if is_ours else None
        at_start = worker.at_start if is_ours else None
        on_cpu = str(scheduler.device) == "cpu"
        steering = Steering(capabilities, _View(scheduler), proposer, at_start, computes_at_launch=on_cpu)
    except Exception:
        logger.exception("specctl does not steer this engine; it drafts what it was started with")
        return
    scheduler.specctl = steering
    if is_ours:
        worker.specctl = steering
        worker.host_relay = getattr(scheduler.future_map, "specctl_relay", None)


def _run_batch(original: Any, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    steering = getattr(scheduler, "specctl", None)
    if steering is None:
        return original(scheduler, batch, *args, **kwargs)
    steering.before_run(batch)
    worker = scheduler.draft_worker if _is_steered(scheduler.draft_worker) else None
    if worker is not None:
        worker.before_launch(batch)
    result = original(scheduler, batch, *args, **kwargs)
    if worker is not None:
        worker.launched(batch, result)
    steering.after_run(result)
    return result


def _process_batch_result(
    original: Any, scheduler: Any, batch: Any, result: Any, *args: Any, **kwargs: Any
) -> Any:
    steering = getattr(scheduler, "specctl", None)
    if steering is None:
        return original(scheduler, batch, result, *args, **kwargs)
    steering.before_result(result)
    answer = original(scheduler, batch, result, *args, **kwargs)
    steering.after_result(result)
    return answer


def _get_internal_state(original: Any, scheduler: Any, recv_req: Any) -> Any:
    """SGLang sends the request to every scheduler of the server and runs it between two batches."""
    if not (recv_req.rid or "").startswith(MARK):
        return original(scheduler, recv_req)
    asked = json.loads(recv_req.rid.removeprefix(MARK))
    rank = get_parallel().dp_rank or 0
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


def _support(scheduler: Any) -> MethodSupport:
    worker, name = scheduler.draft_worker, scheduler.spec_algorithm.name
    spec = get_spec()
    at_start = spec.speculative_num_steps, spec.speculative_eagle_topk or 1, spec.speculative_num_draft_tokens
    if _is_steered(worker):
        return method_support(name, at_start, worker.shapes)
    return method_support(name, at_start, None, why_as_stock(type(worker).__name__))


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
        has_shadow_acceptance=is_suffix,
        # Without a row's word the longest draft of a batch decides how many are verified.
        min_token_prob=0.0 if is_suffix else None,
        algorithms=(SUFFIX, PEAGLE),
        warnings=support.warnings(scheduler.device),
        **machine_of(scheduler),
    )
