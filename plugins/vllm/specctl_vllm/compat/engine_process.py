"""Our part in the processes of an engine that asked for specctl: the scheduler's, and a worker's runner."""

from __future__ import annotations

import functools
from typing import Any

from specctl.engine.patches import install
from specctl_vllm.compat import step_report
from specctl_vllm.options import options_from_env
from specctl_vllm.patches import of_runner

__all__ = ["add_specctl_call", "wrap_get_scheduler_cls", "wrap_post_step", "wrap_worker_init"]


def add_specctl_call(_: None) -> Any:
    """EngineCore.specctl_call, which vLLM's utility calls look up by name. It runs between two steps."""

    def specctl_call(self: Any, operation: str, payload: str) -> str:
        answer: str = self.scheduler.specctl.handle(operation, payload)
        return answer

    return specctl_call


def wrap_post_step(original: Any) -> Any:
    """Takes the drafts that came with the step's tokens; others are asked for as before."""

    @functools.wraps(original)
    def post_step(self: Any, model_executed: bool) -> None:
        drafts = getattr(self.scheduler, "specctl_drafts", None)
        if drafts is None:
            original(self, model_executed)
        else:
            self.scheduler.specctl_drafts = None
            self.scheduler.update_draft_token_ids(drafts)

    return post_step


def wrap_get_scheduler_cls(original: Any) -> Any:
    """Whichever class vLLM chose, a user's own included, with the table in it."""

    @functools.wraps(original)
    def get_scheduler_cls(self: Any) -> Any:
        from specctl_vllm.compat.scheduler import steered

        return steered(original(self))

    return get_scheduler_cls


def wrap_worker_init(original: Any) -> Any:
    """Patches the model runner where a worker is made: in the process that runs the model, and in no other,
    as its modules must not be imported in the API server."""

    @functools.wraps(original)
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        is_v2 = vllm_config.use_v2_model_runner
        if not is_v2:
            _check_host_method(vllm_config)
        install(of_runner(is_v2, options_from_env()))
        speculative = vllm_config.speculative_config
        step_report.tell_rejected(speculative is not None and speculative.enable_adaptive_verification)
        original(self, vllm_config, *args, **kwargs)

    return __init__


def _check_host_method(vllm_config: Any) -> None:
    options = options_from_env()
    speculative = vllm_config.speculative_config
    if options is None or speculative is None or not options.method.startswith("specctl_"):
        return
    is_async = bool(vllm_config.scheduler_config.async_scheduling)
    if (options.method == "specctl_hybrid" and is_async) or speculative.method == "ngram_gpu":
        raise ValueError(
            "specctl: expected Model Runner V2, but vLLM chose V1 for another option of this server (its log "
            "names it); set VLLM_USE_V2_MODEL_RUNNER=0 to draft on the host"
        )
