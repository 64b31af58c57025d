"""Every name inside vLLM that this plugin imports, patches, overrides or calls; ``canary`` checks the list.

A test compares it with the plugin's own sources, so that an import or a patch without its line here fails.
"""

from __future__ import annotations

from specctl.engine.seams import Seam

__all__ = ["RELIED_ON", "Seam"]


_SCHEDULER = "vllm.v1.core.sched.scheduler"
_OUTPUT = "vllm.v1.core.sched.output"
_RUNNER = "vllm.v1.worker.gpu_model_runner"
_GPU = "vllm.v1.worker.gpu"
_RUNNER_V2 = f"{_GPU}.model_runner"
_GRAPHS = f"{_GPU}.cudagraph_utils"
_FLASH_ATTENTION = "vllm.v1.attention.backends.flash_attn"
_SPEC = f"{_GPU}.spec_decode"
_DFLASH_GRAPHS = f"{_SPEC}.dflash.cudagraph"
_SPECULATOR = f"{_SPEC}.speculator"
_REJECTION = f"{_SPEC}.rejection_sampler"
_AUTOREGRESSIVE = f"{_SPEC}.target_dependent_ar.speculator"

_START: tuple[Seam, ...] = (
    Seam("vllm.version", "__version__"),
    Seam("vllm.envs", "VLLM_USE_V2_MODEL_RUNNER"),
    Seam("vllm.platforms", "current_platform"),
    Seam("vllm.triton_utils", "HAS_TRITON"),
    Seam("vllm.utils.cpu_triton_utils", "_expand_kernel_impl"),
    Seam("vllm.engine.arg_utils", "EngineArgs.create_speculative_config", ("self",)),
    Seam("vllm.plugins", "load_endpoint_plugins", ("supported_tasks",)),
    Seam("vllm.config.scheduler", "SchedulerConfig.get_scheduler_cls", ("self",)),
    Seam("vllm.config.vllm", "VllmConfig.use_v2_model_runner", ("self",)),
    Seam("vllm.config.vllm", "VllmConfig._get_v2_model_runner_unsupported_features", ("self",)),
    Seam("vllm.config.compilation", "CUDAGraphMode"),
)

_ENGINE_CORE: tuple[Seam, ...] = (
    Seam("vllm.v1.engine.core", "EngineCore.step", ("self",)),
    Seam("vllm.v1.engine.core", "EngineCore.post_step", ("self", "model_executed")),
    Seam("vllm.v1.engine.core_client", "AsyncMPClient.call_utility_async", ("self", "method")),
    Seam(_SCHEDULER, "Scheduler.schedule", ("self",)),
    Seam(_SCHEDULER, "Scheduler._update_after_schedule", ("self", "scheduler_output")),
    Seam(
        _SCHEDULER,
        "Scheduler.update_from_output",
        ("self", "scheduler_output", "model_runner_output"),
    ),
    Seam(_SCHEDULER, "Scheduler.update_draft_token_ids", ("self", "draft_token_ids")),
    Seam(_SCHEDULER, "Scheduler._free_request", ("self", "request")),
    Seam(_SCHEDULER, "Scheduler.dynamic_sd_lookup"),
    Seam(_OUTPUT, "SchedulerOutput.num_spec_tokens_to_schedule"),
    Seam(_OUTPUT, "SchedulerOutput.scheduled_spec_decode_tokens"),
    Seam(_OUTPUT, "SchedulerOutput.finished_req_ids"),
    Seam(_OUTPUT, "SchedulerOutput.scheduled_new_reqs"),
    Seam("vllm.v1.request", "Request.num_output_tokens", ("self",)),
    Seam("vllm.v1.request", "Request.spec_token_ids"),
    Seam("vllm.v1.request", "Request.lora_request"),
    Seam("vllm.v1.request", "Request.cache_salt"),
    Seam("vllm.v1.request", "Request.sampling_params"),
    Seam("vllm.sampling_params", "SamplingParams.extra_args"),
    Seam("vllm.v1.outputs", "DraftTokenIds.draft_token_ids"),
    Seam("vllm.config.vllm", "VllmConfig._maybe_disable_dynamic_sd_for_data_parallel", ("self",)),
    Seam("vllm.config.model", "ModelConfig.is_moe", ("self",)),
    Seam("vllm.config.parallel", "ParallelConfig.reconfigure_for_independent_dp_rank", ("self",)),
    Seam("vllm.v1.engine.core_client", "MPClient.core_engines"),
    Seam("vllm.v1.engine.core_client", "MPClient.engine_ranks_managed"),
    Seam("vllm.v1.engine.core_client", "AsyncMPClient._call_utility_async", ("self", "method")),
)

_WORKER: tuple[Seam, ...] = (
    Seam("vllm.v1.worker.worker_base", "WorkerBase.__init__", ("self", "vllm_config")),
    Seam(_RUNNER, "GPUModelRunner.execute_model", ("self", "scheduler_output")),
    Seam(_RUNNER, "GPUModelRunner.sample_tokens", ("self", "grammar_output")),
    Seam(_RUNNER, "GPUModelRunner.take_draft_token_ids", ("self",)),
    Seam("vllm.config.speculative", "SpeculativeConfig.parallel_drafting"),
    Seam("vllm.config.speculative", "SpeculativeConfig.use_multi_module_mtp", ("self",)),
    Seam(_RUNNER, "GPUModelRunner.device"),
    Seam(_RUNNER, "GPUModelRunner.drafter"),
    Seam(_RUNNER, "AsyncGPUModelRunnerOutput.get_output", ("self",)),
    Seam("vllm.v1.spec_decode.llm_base_proposer", "SpecDecodeBaseProposer.model"),
    Seam(_AUTOREGRESSIVE, "TargetDependentARSpeculator.on_prefill_end", ("self", "num_reqs")),
    Seam(
        _RUNNER,
        "GPUModelRunner.propose_draft_token_ids",
        ("self", "scheduler_output", "sampled_token_ids"),
    ),
    Seam("vllm.v1.spec_decode.suffix_decoding", "SuffixDecodingProposer.propose", ("self",)),
    Seam("vllm.v1.spec_decode.suffix_decoding", "SuffixDecodingProposer.num_speculative_tokens"),
)

_WORKER_V2: tuple[Seam, ...] = (
    Seam(_RUNNER_V2, "RequestState"),
    Seam("vllm.distributed.parallel_state", "get_tp_group"),
    Seam("vllm.distributed.parallel_state", "GroupCoordinator.broadcast", ("self", "input_", "src")),
    Seam(_RUNNER_V2, "GPUModelRunner.execute_model", ("self", "scheduler_output")),
    Seam(_RUNNER_V2, "init_speculator"),
    Seam(_SPEC, "init_speculator", ("vllm_config", "device", "req_states")),
    Seam(
        _SPECULATOR,
        "BaseSpeculator.propose",
        (
            "self",
            "input_batch",
            "attn_metadata",
            "slot_mappings",
            "last_hidden_states",
            "aux_hidden_states",
            "num_sampled",
            "num_rejected",
            "last_sampled",
            "next_prefill_tokens",
            "temperature",
            "seeds",
            "dp_sync_state",
            "dummy_run",
            "skip_attn_for_dummy_run",
            "mm_inputs",
            "is_profile",
            "num_speculative_tokens",
        ),
    ),
    Seam(
        "vllm.v1.spec_decode.dynamic.utils",
        "build_dynamic_sd_schedule_lookup",
        ("num_speculative_tokens_per_batch_size", "vllm_max_batch_size", "vllm_num_speculative_tokens"),
    ),
    Seam(_GRAPHS, "build_dynamic_sd_schedule_lookup"),
    Seam(f"{_SPEC}.target_dependent_ar.cudagraph_utils", "build_dynamic_sd_schedule_lookup"),
    Seam(_GRAPHS, "CudaGraphManager._init_candidates", ("self",)),
    Seam(
        _FLASH_ATTENTION,
        "FlashAttentionMetadataBuilder.build",
        ("self", "common_prefix_len", "common_attn_metadata"),
    ),
    Seam(_FLASH_ATTENTION, "FlashAttentionMetadataBuilder.max_cudagraph_size"),
    Seam(f"{_SPEC}.ngram.speculator", "NgramGPUSpeculator.propose", ("self", "input_batch")),
    Seam(
        _REJECTION,
        "RejectionSampler._verify_in_chunks",
        (
            "self",
            "logits",
            "input_batch",
            "draft_logits",
            "draft_sampled",
            "pos",
            "max_chunk_logits",
            "max_num_logprobs",
            "verify_draft_sampled",
        ),
    ),
    Seam(
        _REJECTION,
        "RejectionSampler._get_logprobs_tensors",
        (
            "self",
            "sampled",
            "num_sampled",
            "logits",
            "cu_num_logits",
            "cu_num_logits_np",
            "max_num_logprobs",
        ),
    ),
    Seam(_REJECTION, "RejectionSampler.synthetic_conditional_rates"),
    Seam(_REJECTION, "RejectionSampler.watermark_key"),
    Seam(_REJECTION, "RejectionSampler.use_block_verification"),
    Seam(_REJECTION, "RejectionSampler.num_speculative_steps"),
    Seam(f"{_GPU}.sample.sampler", "Sampler.needs_logits_processing"),
    Seam(f"{_GPU}.sample.sampler", "Sampler.logits_processors"),
    Seam(f"{_GPU}.sample.sampler", "Sampler.thinking_budget_state"),
    Seam(f"{_GPU}.sample.sampler", "Sampler.sampling_states"),
    Seam(f"{_GPU}.sample.sampler", "Sampler.return_sampling_mask"),
    Seam(f"{_GPU}.sample.sampler", "Sampler.logprobs_mode"),
    Seam(f"{_GPU}.sample.sampler", "Sampler.use_fp64_gumbel"),
    Seam(f"{_GPU}.sample.states", "SamplingStates.temperature"),
    Seam(f"{_GPU}.sample.states", "SamplingStates.top_k"),
    Seam(f"{_GPU}.sample.states", "SamplingStates.top_p"),
    Seam(f"{_GPU}.sample.states", "SamplingStates.min_p"),
    Seam(f"{_GPU}.sample.states", "SamplingStates.seeds"),
    Seam(f"{_GPU}.sample.states", "SamplingStates.vocab_size"),
    Seam(f"{_GPU}.sample.logit_bias", "LogitBiasState.use_logit_bias"),
    Seam(f"{_GPU}.sample.penalties", "PenaltiesState.use_penalty"),
    Seam(f"{_GPU}.sample.bad_words", "BadWordsState.num_bad_words"),
    Seam(f"{_GPU}.sample.thinking_budget", "ThinkingBudgetState.enabled"),
    Seam(f"{_GPU}.sample.thinking_budget", "ThinkingBudgetState.use_thinking_budget"),
    Seam(_REJECTION, "RejectionSampler.__init__", ("self", "sampler", "spec_config", "device")),
    Seam(
        f"{_SPEC}.adaptive_verification",
        "AdaptiveVerificationManager.record_confidences",
        ("self", "confidence_probs", "input_batch"),
    ),
    Seam(f"{_GPU}.async_utils", "async_copy_to_np", ("x",)),
    Seam(f"{_GPU}.async_utils", "stream", ("to_stream", "from_stream")),
    Seam(_RUNNER_V2, "AsyncOutput"),
    Seam(
        f"{_GPU}.async_utils",
        "AsyncOutput.__init__",
        ("self", "model_runner_output", "sampler_output", "num_sampled_tokens", "main_stream", "copy_stream"),
    ),
    Seam(f"{_GPU}.async_utils", "AsyncOutput.get_output", ("self",)),
    Seam(f"{_GPU}.sample.output", "SamplerOutput.num_rejected"),
    Seam(f"{_GPU}.sample.sampler", "Sampler.apply_sampling_params", ("self", "logits")),
    Seam(f"{_GPU}.sample.states", "SamplingStates.add_request", ("self", "req_idx", "sampling_params")),
    Seam(f"{_GPU}.states", "RequestState.__init__", ("self", "max_num_reqs", "max_model_len")),
)

_DRAFT_HEAD: tuple[Seam, ...] = (
    Seam(_SPECULATOR, "DraftModelSpeculator.__init__", ("self", "vllm_config", "device")),
    Seam(_SPECULATOR, "DraftModelSpeculator.load_model", ("self", "target_model")),
    Seam(
        _SPECULATOR,
        "DraftModelSpeculator.load_draft_model",
        ("self", "target_model", "target_attn_layer_names"),
    ),
    Seam(
        _SPECULATOR,
        "DraftModelSpeculator.set_attn",
        (
            "self",
            "model_state",
            "kv_cache_config",
            "block_tables",
            "target_input_buffers",
            "target_attn_groups",
        ),
    ),
    Seam(
        _SPECULATOR,
        "DraftModelSpeculator._copy_request_inputs",
        ("self", "num_reqs", "idx_mapping", "temperature", "seeds", "dummy_run"),
    ),
    Seam(
        _SPECULATOR,
        "DraftModelSpeculator._build_uniform_batch_dp_sync",
        ("self", "target_dp_sync_state", "num_reqs", "num_query_per_req"),
    ),
    Seam(
        _SPECULATOR,
        "DraftModelSpeculator._build_uniform_attn_metadata",
        ("self", "batch_desc", "num_reqs", "num_query_per_req", "seq_lens_cpu_upper_bound", "step"),
    ),
    Seam(
        _SPECULATOR,
        "DraftModelSpeculator._build_attn_metadata",
        ("self", "num_reqs", "batch_desc", "query_start_loc_np", "seq_lens_cpu_upper_bound", "step"),
    ),
    Seam(_SPECULATOR, "DraftModelSpeculator._prepare_eplb_forward", ("self", "num_unpadded_tokens")),
    Seam(
        _SPECULATOR,
        "DraftModelSpeculator._update_draft_decode_metadata",
        ("self", "attn_metadata", "num_reqs"),
    ),
    Seam(
        _SPECULATOR,
        "DraftModelSpeculator.sample_draft",
        (
            "self",
            "hidden_states",
            "sample_src_positions",
            "idx_mapping",
            "temperature",
            "seeds",
            "draft_step",
            "draft_logits",
        ),
    ),
    Seam(f"{_SPEC}.eagle.speculator", "EagleSpeculator"),
    Seam(_AUTOREGRESSIVE, "TargetDependentARSpeculator.load_model", ("self", "target_model")),
    Seam(_AUTOREGRESSIVE, "TargetDependentARSpeculator.capture", ("self",)),
    Seam(
        _AUTOREGRESSIVE,
        "TargetDependentARSpeculator._run_model",
        ("self", "num_tokens", "attn_metadata", "slot_mappings", "num_tokens_across_dp"),
    ),
    Seam(f"{_SPEC}.eagle.utils", "load_eagle_model", ("target_model", "vllm_config")),
    Seam(f"{_SPEC}.utils", "get_parallel_drafting_token_id", ("hf_config",)),
    Seam(
        _SPECULATOR,
        "DraftModelSpeculator.compute_draft_logits",
        ("self", "hidden_states", "spec_step_idx"),
    ),
)

_DRAFT_PASS: tuple[Seam, ...] = (
    Seam("vllm.forward_context", "BatchDescriptor.num_tokens"),
    Seam(
        "vllm.forward_context",
        "set_forward_context",
        ("attn_metadata", "vllm_config", "num_tokens", "num_tokens_across_dp", "cudagraph_runtime_mode"),
    ),
    Seam(_GRAPHS, "BatchExecutionDescriptor.cg_mode"),
    Seam(_GRAPHS, "BatchExecutionDescriptor.num_tokens"),
    Seam(_GRAPHS, "BatchExecutionDescriptor.num_reqs"),
    Seam(_GRAPHS, "BatchExecutionDescriptor.uniform_token_count"),
    Seam(
        _GRAPHS,
        "CudaGraphManager.__init__",
        ("self", "vllm_config", "device", "cudagraph_mode", "decode_query_len"),
    ),
    Seam(
        _GRAPHS,
        "CudaGraphManager.dispatch",
        ("self", "num_reqs", "num_tokens", "uniform_token_count", "num_active_loras"),
    ),
    Seam(_GRAPHS, "CudaGraphManager.run_fullgraph", ("self", "desc")),
    Seam(_GRAPHS, "CudaGraphManager.capture", ("self", "create_forward_fn", "progress_bar_desc")),
    Seam(_GRAPHS, "CudaGraphManager._capture_descs"),
    Seam(_GRAPHS, "CudaGraphManager._graphs_captured"),
    Seam(_GRAPHS, "CudaGraphManager.graphs"),
    Seam(
        _DFLASH_GRAPHS,
        "DFlashCudaGraphManager.capture",
        (
            "self",
            "forward_fn",
            "input_buffers",
            "block_tables",
            "attn_groups",
            "kv_cache_config",
            "max_model_len",
            "causal",
            "prepare_forward",
            "progress_bar_desc",
        ),
    ),
    Seam(
        f"{_GPU}.dp_utils",
        "dispatch_cg_and_sync_dp",
        ("cudagraph_manager", "num_reqs", "num_tokens", "uniform_token_count", "dp_size", "dp_rank"),
    ),
    Seam(
        f"{_GPU}.attn_utils",
        "build_attn_metadata",
        (
            "attn_groups",
            "num_reqs",
            "num_tokens",
            "query_start_loc_gpu",
            "query_start_loc_cpu",
            "max_query_len",
            "seq_lens",
            "max_seq_len",
            "block_tables",
            "slot_mappings",
            "kv_cache_config",
        ),
    ),
    Seam(f"{_GPU}.attn_utils", "build_slot_mappings_by_layer", ("slot_mappings", "kv_cache_config")),
    Seam(
        f"{_GPU}.input_batch", "InputBuffers.__init__", ("self", "max_num_reqs", "max_num_tokens", "device")
    ),
    Seam(f"{_GPU}.input_batch", "InputBatch.make_dummy", ("cls", "num_reqs", "num_tokens", "input_buffers")),
    Seam(f"{_GPU}.block_table", "BlockTables.get_dummy_block_tables", ("self", "num_reqs")),
    Seam(f"{_GPU}.block_table", "BlockTables.get_dummy_slot_mappings", ("self", "num_tokens")),
)

RELIED_ON: tuple[Seam, ...] = (*_START, *_ENGINE_CORE, *_WORKER, *_WORKER_V2, *_DRAFT_HEAD, *_DRAFT_PASS)
