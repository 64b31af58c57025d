"""Everything that this plugin changes in vLLM: the one list.

The wrappers are in ``compat`` and are imported when they are needed: the list can be read without vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable

from specctl.engine.patches import Patch, imported
from specctl_vllm.options import Options

__all__ = [
    "COMMAND_LINE",
    "ENGINE",
    "PATCHES",
    "RUNNER_V1",
    "RUNNER_V2",
    "SERVER",
    "for_method",
    "of_runner",
    "of_server",
]

_CONFIG = "vllm.config.vllm:VllmConfig"
_GPU = "vllm.v1.worker.gpu"
_V1 = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
_V2 = f"{_GPU}.model_runner"
_PROPOSERS = "https://github.com/vllm-project/vllm/issues/36219"
_CUSTOM_CLASS = "https://github.com/vllm-project/vllm/pull/39487"
_RANKS = "https://github.com/vllm-project/vllm/pull/45963"
_BATCH_TABLES = "https://github.com/vllm-project/vllm/pull/32374"
_ADAPTIVE = "https://github.com/vllm-project/vllm/issues/52559"
_FEWER_GRAPHS = "https://github.com/vllm-project/vllm/issues/49548"
_NO_REPORT = "none: no thread about what a worker reports with a step"
_NO_CONTROL = "none: no thread about a plugin's access to the scheduler"
_RANKS_AGREE = "data-parallel ranks agree on a number of drafts"
_REQUEST_ARGS = "none: no thread about what plugins read of requests"
_PROPOSER_REGISTRY = "a plugin can register a proposer, which learns its requests and how much is wanted"

COMMAND_LINE: tuple[Patch, ...] = (
    Patch(
        "vllm.engine.arg_utils:EngineArgs.create_speculative_config",
        imported("specctl_vllm.compat.engine_args", "wrap_create_speculative_config"),
        "command line",
        "A method's name is one of a closed list, and the config rejects unknown keys.",
        _PROPOSERS,
        "a plugin can add a method and its options",
    ),
)
"""In the process that reads a command line, whatever it asks for."""

SERVER: tuple[Patch, ...] = (
    Patch(
        "vllm.plugins:load_endpoint_plugins",
        imported("specctl_vllm.compat.engine_args", "wrap_load_endpoint_plugins"),
        "server",
        "Endpoint plugins are loaded where VLLM_PLUGINS names them; here the command line has asked.",
        "none: no thread about it",
        "a general plugin can open routes",
    ),
    Patch(
        "vllm.v1.engine.async_llm:AsyncLLM._run_output_handler",
        imported("specctl_vllm.control.embedded", "wrap_run_output_handler"),
        "server",
        "A program that embeds the engine has no API server, and so no routes.",
        "none: no thread about it",
        "an engine without an API server can be steered",
    ),
    Patch(
        "vllm.sampling_params:SamplingParams._verify_args",
        imported("specctl_vllm.compat.requests", "wrap_verify_args"),
        "server",
        "What a request says to a plugin is not checked where it comes in.",
        _REQUEST_ARGS,
        "a plugin can check its keys of vllm_xargs",
    ),
    Patch(
        "vllm.entrypoints.openai.chat_completion.protocol:ChatCompletionRequest.to_sampling_params",
        imported("specctl_vllm.compat.requests", "wrap_to_sampling_params"),
        "server",
        "The engine core does not learn that a request may call tools.",
        _REQUEST_ARGS,
        "sampling parameters say whether a request has tools",
    ),
    Patch(
        "vllm.entrypoints.openai.responses.protocol:ResponsesRequest.to_sampling_params",
        imported("specctl_vllm.compat.requests", "wrap_to_sampling_params"),
        "server",
        "The same for the other API with tools.",
        _REQUEST_ARGS,
        "sampling parameters say whether a request has tools",
    ),
)

ENGINE: tuple[Patch, ...] = (
    Patch(
        "vllm.v1.engine.core:EngineCore.specctl_call",
        imported("specctl_vllm.compat.engine_process", "add_specctl_call"),
        "engine",
        "An endpoint plugin has no way to the scheduler, and collective_rpc reaches workers only.",
        _NO_CONTROL,
        "an endpoint plugin can call a part of its own in the engine core",
        adds=True,
    ),
    Patch(
        "vllm.v1.engine.core:EngineCore.post_step",
        imported("specctl_vllm.compat.engine_process", "wrap_post_step"),
        "engine",
        "A synchronous step asks the worker for its drafts in a second call, also where there are none.",
        "none: no thread about it",
        "drafts on the host come with the tokens of their step",
    ),
    Patch(
        f"{_CONFIG}._get_v2_model_runner_unsupported_features",
        imported("specctl_vllm.compat.model_runner_v2", "wrap_unsupported_features"),
        "engine",
        "Model Runner V2 is taken from every server whose head drafts in parallel; P-EAGLE runs there.",
        _PROPOSERS,
        "parallel drafting runs on Model Runner V2",
        frozenset({"specctl_peagle", "specctl_hybrid"}),
    ),
    Patch(
        f"{_CONFIG}._maybe_disable_dynamic_sd_for_data_parallel",
        imported("specctl_vllm.compat.data_parallel", "wrap_drop_batch_table"),
        "engine",
        "Data-parallel ranks lose their batch table, and with it the graphs for fewer drafts.",
        _BATCH_TABLES,
        "a batch table is kept under data parallelism",
    ),
    Patch(
        "vllm.config.scheduler:SchedulerConfig.get_scheduler_cls",
        imported("specctl_vllm.compat.engine_process", "wrap_get_scheduler_cls"),
        "engine",
        "--scheduler-cls replaces the class before vLLM chooses its synchronous or asynchronous one.",
        _ADAPTIVE,
        "the scheduler asks a plugin for the number of drafts of a step",
        entries=(
            "before_schedule",
            "after_schedule",
            "before_update",
            "after_update",
            "drafts_arrived",
            "namespace_of",
            "is_shared",
            "finished_output",
            "self_check",
        ),
    ),
    Patch(
        "vllm.v1.worker.worker_base:WorkerBase.__init__",
        imported("specctl_vllm.compat.engine_process", "wrap_worker_init"),
        "worker",
        "The model runner may be imported in the process that runs the model only; a worker is made there.",
        _PROPOSERS,
        "none of the patches of a model runner is left",
    ),
)
"""In every process of a server that asked for specctl, before its engine core and workers are made."""

RUNNER_V1: tuple[Patch, ...] = (
    Patch(
        f"{_V1}.execute_model",
        imported("specctl_vllm.compat.model_runner", "wrap_execute_model"),
        "worker",
        "A proposer does not learn which requests ended, and which began under which namespace.",
        _CUSTOM_CLASS,
        _PROPOSER_REGISTRY,
        entries=("finish", "note_requests"),
    ),
    Patch(
        f"{_V1}.initialize_kv_cache",
        imported("specctl_vllm.compat.model_runner", "wrap_initialize_kv_cache"),
        "worker",
        "A runner has one drafter, and the suffix index drafts beside it.",
        _PROPOSERS,
        "a plugin can register a proposer beside another",
        frozenset({"specctl_hybrid"}),
        entries=("hybrid.find", "hybrid.timed", "hybrid.merged"),
    ),
    Patch(
        f"{_V1}.sample_tokens",
        imported("specctl_vllm.compat.model_runner", "wrap_sample_tokens"),
        "worker",
        "How long drafting and verifying took is not reported.",
        _NO_REPORT,
        "a step's output names the seconds of its drafts",
        entries=("clock.report", "carry_drafts"),
    ),
    Patch(
        f"{_V1}.propose_draft_token_ids",
        imported("specctl_vllm.compat.model_runner", "wrap_propose_draft_token_ids"),
        "worker",
        "A custom_class proposer learns neither its requests nor how many tokens are wanted, and suffix and "
        "parallel drafting fail where fewer are wanted.",
        _CUSTOM_CLASS,
        _PROPOSER_REGISTRY,
        entries=("note_batch", "watch_first_pass", "clock.mark", "propose_step", "keeper.poll"),
    ),
    Patch(
        f"{_V1}.take_draft_token_ids",
        imported("specctl_vllm.compat.model_runner", "wrap_take_draft_token_ids"),
        "worker",
        "Drafts travel to the scheduler without what the proposer counted.",
        _NO_REPORT,
        "a proposer can report with its drafts",
        entries=("clock.seconds", "shadow_counts", "stats"),
    ),
    Patch(
        "vllm.v1.worker.dp_utils:_run_ar",
        imported("specctl_vllm.compat.rank_agreement", "wrap_run_ar"),
        "worker",
        "Ranks that run every step together do not agree on a number of drafts.",
        _RANKS,
        _RANKS_AGREE,
    ),
    Patch(
        f"{_V1}._dummy_run",
        imported("specctl_vllm.compat.rank_agreement", "wrap_dummy_run"),
        "worker",
        "A rank without requests has no wish in that agreement.",
        _RANKS,
        _RANKS_AGREE,
    ),
    Patch(
        "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.propose",
        imported("specctl_vllm.compat.resting_head", "wrap_propose"),
        "worker",
        "A hybrid's head runs in every step, for its KV cache, also where suffix drafts are taken.",
        _PROPOSERS,
        "a head rests at 0 drafts",
        frozenset({"specctl_hybrid"}),
        entries=("head.rests", "head.drop"),
    ),
    Patch(
        "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.dummy_run",
        imported("specctl_vllm.compat.rank_agreement", "wrap_drafter_dummy_run"),
        "worker",
        "A rank without requests makes the passes of the largest number of drafts, whatever the others make.",
        _RANKS,
        _RANKS_AGREE,
    ),
)

VERIFIER: tuple[Patch, ...] = (
    Patch(
        f"{_GPU}.spec_decode.rejection_sampler:RejectionSampler._verify_in_chunks",
        imported("specctl_vllm.compat.verification", "wrap_verify_in_chunks"),
        "worker",
        "There is no hook for a verifier.",
        "none: no thread about a verifier of a plugin",
        "a verifier can be registered",
        entries=("_verify_in_chunks",),
    ),
)
"""On Model Runner V2, where specctl's kernels verify."""

RUNNER_V2: tuple[Patch, ...] = (
    Patch(
        f"{_V2}:RequestState",
        imported("specctl_vllm.compat.model_runner_v2", "wrap_request_state"),
        "worker",
        "Tokens of requests are on the device for n-grams only; suffix drafts scan them in each step.",
        _PROPOSERS,
        "a method can ask for tokens on the device",
        frozenset({"specctl_hybrid"}),
    ),
    Patch(
        f"{_V2}:init_speculator",
        imported("specctl_vllm.compat.model_runner_v2", "wrap_init_speculator"),
        "worker",
        "There is no hook for a speculator, and an EAGLE head runs in every step with 0 drafts wanted.",
        _PROPOSERS,
        "a plugin can register a speculator, and a head rests at 0 drafts",
        entries=("propose", "on_prefill_end"),
    ),
    Patch(
        f"{_V2}:GPUModelRunner.execute_model",
        imported("specctl_vllm.compat.model_runner_v2", "wrap_execute_model"),
        "worker",
        "A speculator does not see which requests a step is for.",
        _PROPOSERS,
        "a speculator learns its requests",
        entries=("note_step",),
    ),
    Patch(
        f"{_GPU}.dp_utils:get_dp_group",
        imported("specctl_vllm.compat.rank_agreement_v2", "wrap_get_dp_group"),
        "worker",
        "Ranks that run every step together do not agree on a number of drafts.",
        _RANKS,
        _RANKS_AGREE,
    ),
    Patch(
        f"{_V2}:GPUModelRunner._dummy_run",
        imported("specctl_vllm.compat.rank_agreement_v2", "wrap_dummy_run"),
        "worker",
        "A rank without requests runs as wide as with the largest number of drafts, and the others then "
        "without their full graphs.",
        _RANKS,
        _RANKS_AGREE,
    ),
    Patch(
        f"{_V2}:AsyncOutput",
        imported("specctl_vllm.compat.step_report", "wrap_async_output"),
        "worker",
        "The host's clock counts the launch of the next step to this one, and what a worker counted has no "
        "other way to the scheduler.",
        _NO_REPORT,
        "a step's output names its seconds on the device and carries a plugin's counts",
        entries=("AsyncOutput", "AsyncOutput.get_output"),
    ),
    Patch(
        f"{_GPU}.spec_decode.ngram.speculator:NgramGPUSpeculator.propose",
        imported("specctl_vllm.compat.model_runner_v2", "wrap_ngram_propose"),
        "worker",
        "It scans with 0 drafts wanted.",
        _BATCH_TABLES,
        "ngram_gpu rests at 0 drafts",
        frozenset({"ngram_gpu"}),
    ),
    Patch(
        f"{_GPU}.cudagraph_utils:CudaGraphManager._init_candidates",
        imported("specctl_vllm.compat.decode_graphs", "wrap_init_candidates"),
        "worker",
        "Of several numbers of drafts, those of fewer get graphs for few batches. Steps with a prompt have "
        "none beyond 512 tokens, or one every 16.",
        _FEWER_GRAPHS,
        "every number of a batch table has a full graph for every batch, and steps with a prompt have some "
        "beyond 512 tokens",
    ),
    Patch(
        f"{_GPU}.cudagraph_utils:CudaGraphManager.dispatch",
        imported("specctl_vllm.compat.decode_graphs", "wrap_dispatch"),
        "worker",
        "The graph of the next larger number of tokens is looked for, which mostly is of another number of "
        "drafts, so that a batch runs without its full graph.",
        _FEWER_GRAPHS,
        "a graph is looked for by requests and drafts",
        entries=("CudaGraphManager.dispatch",),
    ),
    Patch(
        f"{_GPU}.cudagraph_utils:build_dynamic_sd_schedule_lookup",
        imported("specctl_vllm.compat.decode_graphs", "wrap_schedule_lookup"),
        "worker",
        "Graphs are captured for the numbers of a batch table that is fixed at start; a live one takes any.",
        _BATCH_TABLES,
        "graphs can be asked for by number of drafts",
    ),
    Patch(
        f"{_GPU}.spec_decode.target_dependent_ar.cudagraph_utils:build_dynamic_sd_schedule_lookup",
        imported("specctl_vllm.compat.decode_graphs", "wrap_schedule_lookup"),
        "worker",
        "The same for the graphs of a head, whose module has a name of its own for it.",
        _BATCH_TABLES,
        "graphs can be asked for by number of drafts",
    ),
    Patch(
        "vllm.v1.attention.backends.flash_attn:FlashAttentionMetadataBuilder.build",
        imported("specctl_vllm.compat.attention_splits", "wrap_build"),
        "worker",
        "Batches with a prompt that run without a graph are split as if they ran in one.",
        "none: stock vLLM captures no such large batches",
        "the bound of splits is set where a graph is captured only",
        entries=("FlashAttentionMetadataBuilder.build",),
    ),
)

PATCHES = (*COMMAND_LINE, *SERVER, *ENGINE, *RUNNER_V1, *RUNNER_V2, *VERIFIER)


def of_runner(is_v2: bool, options: Options | None) -> tuple[Patch, ...]:
    """In a process that runs the model. What only other methods need is left out."""
    verifies = is_v2 and options is not None and options.verifies_itself()
    patches = (*(RUNNER_V2 if is_v2 else RUNNER_V1), *(VERIFIER if verifies else ()))
    return patches if options is None else for_method(patches, options.method)


def of_server(is_v2: bool, options: Options | None) -> tuple[Patch, ...]:
    """In all processes of a server that asked for specctl."""
    patches = (*COMMAND_LINE, *SERVER, *ENGINE)
    if options is not None:
        patches = for_method(patches, options.method)
    return (*patches, *of_runner(is_v2, options))


def for_method(patches: Iterable[Patch], method: str) -> tuple[Patch, ...]:
    return tuple(patch for patch in patches if patch.serves(method))
