"""The worker's part on Model Runner V2: our speculator in the place of vLLM's.

Patched are the factory of speculators and the runner's ``execute_model``. Reasons: V2 has no hook for a
speculator of one's own, and it does not see which requests a step is for. vLLM takes the method for its own
``ngram_gpu``, which keeps asynchronous scheduling and the tokens of every request on the device.
Also patched are ``ngram_gpu``, which goes on scanning with 0 drafts wanted, and the list of the numbers of
drafts that graphs are captured for: a live table may ask for any of them.
"""

from __future__ import annotations

import functools
from typing import Any

from specctl_vllm.compat import attention_splits, decode_graphs, step_seconds, verification, verified_batches
from specctl_vllm.options import PARALLEL_HEADS, Options, options_from_env

__all__ = ["allow_parallel_drafting", "install", "runs_on_device"]


def runs_on_device() -> bool:
    """Whether vLLM will run its model on Model Runner V2, as far as the platform says."""
    import vllm.envs as envs
    from vllm.platforms import current_platform
    from vllm.triton_utils import HAS_TRITON

    return bool(current_platform.is_cuda() and HAS_TRITON and envs.VLLM_USE_V2_MODEL_RUNNER is not False)


def install() -> None:
    """Wrap factory and runner, once."""
    from vllm.v1.worker.gpu import cudagraph_utils, model_runner
    from vllm.v1.worker.gpu.spec_decode.ngram.speculator import NgramGPUSpeculator
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar import cudagraph_utils as drafter_graphs

    if hasattr(model_runner.GPUModelRunner, "specctl_is_installed"):
        return
    model_runner.GPUModelRunner.specctl_is_installed = True
    model_runner.RequestState = _dense_tokens(model_runner.RequestState)
    model_runner.init_speculator = _ours_or_theirs(model_runner.init_speculator)
    model_runner.GPUModelRunner.execute_model = _noting(model_runner.GPUModelRunner.execute_model)
    NgramGPUSpeculator.propose = _none_wanted(NgramGPUSpeculator.propose)
    decode_graphs.install()
    attention_splits.install()
    options = options_from_env()
    if options is not None and options.verifies_itself():
        verification.install(verification.Scope(True, True, options.verifies_blocks()))
        verified_batches.install()
    for module in (cudagraph_utils, drafter_graphs):
        module.build_dynamic_sd_schedule_lookup = _every_number


def _ours_or_theirs(original: Any) -> Any:
    @functools.wraps(original)
    def init_speculator(vllm_config: Any, device: Any, req_states: Any) -> Any:
        from specctl_vllm.proposers.guarded import guarded_speculator

        options = options_from_env()
        found = _own_speculator(options, vllm_config, device, req_states)
        if found is not None:
            return guarded_speculator(found)
        found = original(vllm_config, device, req_states)
        return found if options is None else step_seconds.watch_first_pass(found)

    return init_speculator


def _own_speculator(options: Options | None, vllm_config: Any, device: Any, req_states: Any) -> Any:
    """None: the engine's own."""
    method = options.method if options is not None else None
    if method == "specctl_suffix":
        from specctl_vllm.proposers.suffix_device import DeviceSuffixSpeculator

        return DeviceSuffixSpeculator(vllm_config, device, req_states)
    if method == "specctl_peagle":
        from specctl_vllm.proposers.peagle_device import PEagleSpeculator

        return PEagleSpeculator(vllm_config, device)
    if method == "specctl_hybrid":
        from specctl_vllm.proposers.hybrid_device import HybridSpeculator

        return HybridSpeculator(vllm_config, device, req_states)
    if options is not None and _may_rest(vllm_config):
        from specctl_vllm.proposers.eagle_device import RestingEagleSpeculator

        return step_seconds.watch_first_pass(RestingEagleSpeculator(vllm_config, device))
    return None


def _may_rest(vllm_config: Any) -> bool:
    """Reason: at 0 drafts vLLM's EAGLE head runs in every step, which costs 7 to 12 % of the tokens.
    Data-parallel ranks that step together stay as vLLM has them."""
    is_eagle = vllm_config.speculative_config.method in ("eagle", "eagle3")
    return is_eagle and vllm_config.parallel_config.data_parallel_size == 1


def _dense_tokens(original: Any) -> Any:
    """Reason: vLLM keeps every request's tokens in the host's memory but for n-grams; suffix drafts scan
    them in each step."""

    @functools.wraps(original)
    def request_state(*args: Any, **kwargs: Any) -> Any:
        options = options_from_env()
        if options is not None and options.method == "specctl_hybrid":
            kwargs["use_dense_all_token_ids"] = True
        return original(*args, **kwargs)

    return request_state


def allow_parallel_drafting() -> None:
    """Reason: vLLM takes Model Runner V2 from every server whose head drafts in parallel; ours runs there.
    Asked in each process that reads the config."""
    from vllm.config.vllm import VllmConfig

    original = VllmConfig._get_v2_model_runner_unsupported_features
    if hasattr(original, "specctl"):
        return

    @functools.wraps(original)
    def unsupported_features(self: Any) -> list[str]:
        found: list[str] = original(self)
        options = options_from_env()
        if options is not None and options.method in PARALLEL_HEADS:
            found = [feature for feature in found if not feature.startswith("parallel drafting")]
        return found

    unsupported_features.specctl = True  # type: ignore[attr-defined]
    VllmConfig._get_v2_model_runner_unsupported_features = unsupported_features


def _every_number(_table: Any, vllm_max_batch_size: int, vllm_num_speculative_tokens: int) -> list[int]:
    """In the place of the number for each batch: captures read it as the set of all that may come."""
    return [0, *range(vllm_num_speculative_tokens + 1)]


def _noting(original: Any) -> Any:
    @functools.wraps(original)
    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        from specctl_vllm.proposers.guarded import note_step

        note_step(self.speculator, scheduler_output)
        return original(self, scheduler_output, *args, **kwargs)

    return execute_model


def _none_wanted(original: Any) -> Any:
    @functools.wraps(original)
    def propose(self: Any, input_batch: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("num_speculative_tokens") == 0:
            return self.drafts[: input_batch.num_reqs]
        return original(self, input_batch, *args, **kwargs)

    return propose
