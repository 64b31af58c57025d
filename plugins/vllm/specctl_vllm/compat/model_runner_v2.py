"""The worker's part on Model Runner V2: our speculator in the place of vLLM's.

vLLM takes the method for its own ``ngram_gpu``, which keeps asynchronous scheduling and the tokens of every
request on the device.
"""

from __future__ import annotations

import functools
from typing import Any

from specctl_vllm.compat import rank_agreement_v2, step_report
from specctl_vllm.options import HEAD_METHODS, Options, options_from_env

__all__ = [
    "runs_on_device",
    "wrap_execute_model",
    "wrap_init_speculator",
    "wrap_ngram_propose",
    "wrap_request_state",
    "wrap_unsupported_features",
]


def runs_on_device() -> bool:
    """Whether vLLM will run its model on Model Runner V2, as far as the platform says."""
    import vllm.envs as envs
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    return bool(current_platform.is_cuda() and HAS_TRITON and envs.VLLM_USE_V2_MODEL_RUNNER is not False)


def wrap_init_speculator(original: Any) -> Any:
    @functools.wraps(original)
    def init_speculator(vllm_config: Any, device: Any, req_states: Any) -> Any:
        from specctl_vllm.proposers.guarded import guarded_speculator

        options = options_from_env()
        if options is None:
            return original(vllm_config, device, req_states)
        found = _own_speculator(options, vllm_config, device, req_states)
        if found is not None:
            return guarded_speculator(found)
        resting = _resting_speculator(vllm_config, device)
        found = resting or original(vllm_config, device, req_states)
        shares_steps = vllm_config.parallel_config.data_parallel_size > 1
        if shares_steps:
            found = rank_agreement_v2.with_agreed_passes(found)
        found = step_report.watch_first_pass(found)
        if options.method == "specctl_hybrid":
            from specctl_vllm.compat.hybrid_device import with_suffix

            at_rest = found.propose if shares_steps else None
            return guarded_speculator(with_suffix(found, vllm_config, req_states), at_rest)
        return guarded_speculator(found) if resting else found

    return init_speculator


def _own_speculator(options: Options, vllm_config: Any, device: Any, req_states: Any) -> Any:
    """None: the engine's own, or one that rests."""
    if options.method == "specctl_suffix":
        from specctl_vllm.compat.suffix_device import DeviceSuffixSpeculator

        return DeviceSuffixSpeculator(vllm_config, device, req_states)
    if options.method == "specctl_peagle":
        from specctl_vllm.compat.peagle_device import PEagleSpeculator

        return PEagleSpeculator(vllm_config, device)
    if options.method == "specctl_hybrid" and vllm_config.speculative_config.parallel_drafting:
        from specctl_vllm.compat.hybrid_device import HybridSpeculator

        return HybridSpeculator(vllm_config, device, req_states)
    return None


def _resting_speculator(vllm_config: Any, device: Any) -> Any:
    """None: the engine's own."""
    if not _may_rest(vllm_config):
        return None
    from specctl_vllm.compat.eagle_device import RestingEagleSpeculator

    return RestingEagleSpeculator(vllm_config, device)


def _may_rest(vllm_config: Any) -> bool:
    """Reason: at 0 drafts vLLM's EAGLE head runs in every step, which costs 7 to 12 % of the tokens.
    Data-parallel ranks that step together stay as vLLM has them."""
    is_eagle = vllm_config.speculative_config.method in ("eagle", "eagle3")
    return is_eagle and vllm_config.parallel_config.data_parallel_size == 1


def wrap_request_state(original: Any) -> Any:
    """Every request's tokens on the device, where the hybrid's drafts scan them in each step."""

    @functools.wraps(original)
    def request_state(*args: Any, **kwargs: Any) -> Any:
        options = options_from_env()
        if options is not None and options.method == "specctl_hybrid":
            kwargs["use_dense_all_token_ids"] = True
        return original(*args, **kwargs)

    return request_state


def wrap_unsupported_features(original: Any) -> Any:
    """Asked in each process that reads the config."""

    @functools.wraps(original)
    def unsupported_features(self: Any) -> list[str]:
        found: list[str] = original(self)
        options = options_from_env()
        if options is not None and options.method in HEAD_METHODS:
            found = [feature for feature in found if not feature.startswith("parallel drafting")]
        return found

    return unsupported_features


def wrap_execute_model(original: Any) -> Any:
    @functools.wraps(original)
    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        from specctl_vllm.proposers.guarded import note_step

        note_step(self.speculator, scheduler_output)
        rank_agreement_v2.begin_step(scheduler_output, kwargs.get("dummy_run", False))
        return original(self, scheduler_output, *args, **kwargs)

    return execute_model


def wrap_ngram_propose(original: Any) -> Any:
    @functools.wraps(original)
    def propose(self: Any, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("num_speculative_tokens") == 0:
            return self.drafts[: input_batch.num_reqs]
        return original(self, input_batch, *args, **kwargs)

    return propose
