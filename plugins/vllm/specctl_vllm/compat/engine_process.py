"""Installs the scheduler's and the worker's parts in the processes of an engine that asked for specctl."""

from __future__ import annotations

import functools
from typing import Any

from specctl_vllm.compat import data_parallel, model_runner_v2, step_seconds, verified_counts
from specctl_vllm.options import options_from_env

__all__ = ["activate"]


def activate() -> None:
    """Idempotent. Called before the engine core and its workers are built."""
    from vllm.config.scheduler import SchedulerConfig
    from vllm.v1.engine.core import EngineCore
    from vllm.v1.worker.worker_base import WorkerBase

    if hasattr(EngineCore, "specctl_call"):
        return
    EngineCore.specctl_call = _specctl_call
    model_runner_v2.allow_parallel_drafting()
    data_parallel.keep_batch_tables()
    SchedulerConfig.get_scheduler_cls = _steered_scheduler_cls(SchedulerConfig.get_scheduler_cls)
    WorkerBase.__init__ = _hooked_worker_init(WorkerBase.__init__)


def _specctl_call(self: Any, operation: str, payload: str) -> str:
    """Reached by vLLM's utility calls, which look methods up on EngineCore by name.

    Reason for adding a method: an endpoint plugin has no official way to the scheduler, and
    collective_rpc reaches the workers only. It runs between two steps.
    """
    answer: str = self.scheduler.specctl.handle(operation, payload)
    return answer


def _steered_scheduler_cls(original: Any) -> Any:
    """Reason: ``--scheduler-cls`` replaces the class before vLLM decides between Scheduler and
    AsyncScheduler; mixing into whichever it chose keeps that choice, and a user's own class, intact."""

    @functools.wraps(original)
    def get_scheduler_cls(self: Any) -> Any:
        from specctl_vllm.compat.scheduler import steered

        return steered(original(self))

    return get_scheduler_cls


def _hooked_worker_init(original: Any) -> Any:
    """Reason: the model runner must not be imported in the API server, where plugins load as well;
    a worker is always constructed in the process that runs the model."""

    @functools.wraps(original)
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        from specctl_vllm.compat import model_runner

        if vllm_config.use_v2_model_runner:
            model_runner_v2.install()
            step_seconds.install()
            speculative = vllm_config.speculative_config
            if speculative is not None and speculative.enable_adaptive_verification:
                verified_counts.install()
        else:
            _check_host_method(vllm_config)
            model_runner.install()
        original(self, vllm_config, *args, **kwargs)

    return __init__


def _check_host_method(vllm_config: Any) -> None:
    options = options_from_env()
    is_ours = options is not None and options.method.startswith("specctl_")
    speculative = vllm_config.speculative_config
    if not is_ours or speculative is None:
        return
    if options.method == "specctl_hybrid" or speculative.method == "ngram_gpu":
        raise ValueError(
            "specctl: expected Model Runner V2, but vLLM chose V1 for another option of this server (its log "
            "names it); set VLLM_USE_V2_MODEL_RUNNER=0 to draft on the host"
        )
