"""Every name inside SGLang that this plugin imports, patches, overrides or calls; ``canary`` checks the list.

A test compares it with the plugin's own sources, so that an import or a patch without its line here fails.
"""

from __future__ import annotations

from specctl.engine.seams import Seam, members
from specctl_sglang.compat.relied_on_peagle import PEAGLE

__all__ = ["RELIED_ON"]

_SCHEDULER = "sglang.srt.managers.scheduler"
_NGRAM = "sglang.srt.speculative.ngram_worker"
_HTTP = "sglang.srt.entrypoints.http_server"
_REGISTRY = "sglang.srt.speculative.spec_registry"
_SPEC_UTILS = "sglang.srt.speculative.spec_utils"
_OVERLAP = "sglang.srt.managers.overlap_utils"
_RUNNER = "sglang.srt.model_executor.model_runner"
_GRAPHS = "sglang.srt.model_executor.model_runner_components.cuda_graph_setup"
_CONTEXT = "sglang.srt.runtime_context"
_NATIVE = "sglang.srt.layers.attention.torch_native_backend"
_IO = "sglang.srt.managers.io_struct"
_INFO = "sglang.srt.speculative.ngram_info"
_SPEC_ARGUMENTS = "sglang.srt.arg_groups.speculative_hook"
_PARALLEL = "sglang.srt.distributed.parallel_state"
_EAGLE = "sglang.srt.speculative.eagle_worker_v2"
_STANDALONE = "sglang.srt.speculative.standalone_worker_v2"
_BASE = "sglang.srt.speculative.base_spec_worker"
_DFLASH = "sglang.srt.speculative.dflash_worker_v2"
_DRAFT_COMMON = "sglang.srt.speculative.draft_worker_common"
_MOE = "sglang.srt.layers.moe.utils"
_TOKENIZER = "sglang.srt.managers.tokenizer_manager"
_CONTROL = "sglang.srt.managers.tokenizer_control_mixin"

_START: tuple[Seam, ...] = (
    Seam("sglang.version", "__version__"),
    Seam("sglang.srt.plugins", "load_plugins"),
    Seam("sglang.srt.plugins.hook_registry", "HookRegistry.register", ("cls", "target", "hook", "hook_type")),
    Seam("sglang.srt.plugins.hook_registry", "HookType.AROUND"),
    Seam("sglang.srt.plugins.hook_registry", "HookType.REPLACE"),
    Seam("sglang.srt.plugins.hook_registry", "HookRegistry.apply_hooks", ("cls",)),
    Seam("sglang.srt.plugins.hook_registry", "HookRegistry._hooks"),
    Seam("sglang.srt.speculative.spec_info", "SpeculativeAlgorithm.register", ("cls", "name")),
    Seam("sglang.srt.speculative.spec_info", "SpeculativeAlgorithm.NONE"),
    Seam("sglang.srt.speculative.spec_info", "SpeculativeAlgorithm.NGRAM"),
    Seam("sglang.srt.speculative.spec_info", "SpeculativeAlgorithm.create_worker", ("self", "server_args")),
    Seam(
        "sglang.srt.speculative.spec_info",
        "SpeculativeAlgorithm.create_future_map",
        ("self", "device", "req_to_token_pool"),
    ),
    Seam(_REGISTRY, "CustomSpecAlgo.is_ngram", ("self",)),
    Seam(_REGISTRY, "CustomSpecAlgo.has_draft_kv", ("self",)),
    Seam(_REGISTRY, "CustomSpecAlgo.handle_server_args", ("self", "server_args")),
    Seam(_SPEC_ARGUMENTS, "_handle_ngram", ("server_args",)),
    Seam("sglang.srt.arg_groups.overrides", "resolving_view"),
    Seam("sglang.srt.arg_groups.overrides", "declare_resolution", ("server_args", "source")),
    Seam(_SPEC_ARGUMENTS, "_disable_overlap_schedule_for_cpu", ("server_args",)),
    Seam("sglang.launch_server", "run_server", ("server_args",)),
    Seam("sglang.srt.server_args", "prepare_server_args", ("argv",)),
    Seam("sglang.srt.utils.common", "kill_process_tree"),
)

_ROUTES: tuple[Seam, ...] = (
    Seam(_HTTP, "app"),
    Seam(_HTTP, "set_global_state", ("global_state",)),
    Seam(_HTTP, "get_global_state"),
    Seam(_CONTROL, "TokenizerControlMixin.get_internal_state", ("self",)),
    Seam(_TOKENIZER, "TokenizerManager.auto_create_handle_loop", ("self",)),
    Seam(_IO, "BaseReq.rid"),
    Seam(_IO, "GetInternalStateReq"),
    Seam(_IO, "GetInternalStateReqOutput.internal_state"),
)

_REQUEST: tuple[Seam, ...] = members(
    "sglang.srt.managers.schedule_batch",
    "Req",
    "rid",
    "origin_input_ids",
    "output_ids",
    "finished_len",
    "lora_id",
    "extra_key",
    "sampling_params",
)

_IN_SCHEDULER: tuple[Seam, ...] = (
    Seam(_SCHEDULER, "Scheduler.__init__", ("self", "server_args")),
    Seam(_SCHEDULER, "Scheduler.run_batch", ("self", "batch")),
    Seam(_SCHEDULER, "Scheduler.process_batch_result", ("self", "batch", "result")),
    Seam(_SCHEDULER, "Scheduler.get_internal_state", ("self", "recv_req")),
    Seam(_SCHEDULER, "Scheduler.draft_worker"),
    Seam(_SCHEDULER, "Scheduler.future_map"),
    Seam(_SCHEDULER, "Scheduler.spec_algorithm"),
    Seam(_SCHEDULER, "GenerationBatchResult"),
    Seam("sglang.srt.managers.utils", "GenerationBatchResult.num_correct_drafts_per_req_cpu"),
    Seam("sglang.srt.managers.utils", "GenerationBatchResult.accept_lens"),
    # The scheduler has these two and accept_lens copied to the host, and copy_done follows the copies.
    Seam("sglang.srt.managers.utils", "GenerationBatchResult.copy_to_cpu", ("self", "return_logprob")),
    Seam("sglang.srt.managers.utils", "GenerationBatchResult.copy_done"),
    Seam("sglang.srt.managers.utils", "GenerationBatchResult.next_token_ids"),
    Seam("sglang.srt.managers.utils", "GenerationBatchResult.next_draft_input"),
    Seam("sglang.srt.managers.utils", "GenerationBatchResult.speculative_num_draft_tokens"),
    Seam(_OVERLAP, "FutureMap.resolve_seq_lens_cpu", ("self", "batch")),
    Seam(_OVERLAP, "FutureMap.publish_ready"),
    Seam(_OVERLAP, "FutureMap.new_seq_lens_buf"),
    Seam(_OVERLAP, "FutureMap._publish_fresh"),
    Seam(_OVERLAP, "FutureMap.req_pool_size"),
)

_WORKER: tuple[Seam, ...] = (
    Seam(_NGRAM, "NGRAMWorker.forward_batch_generation", ("self", "batch", "on_publish", "pp_proxy_tensors")),
    Seam(_NGRAM, "NGRAMWorker._prepare_for_speculative_decoding", ("self", "batch")),
    Seam(_NGRAM, "NGRAMWorker._init_preallocated_tensors", ("self",)),
    Seam(_NGRAM, "NGRAMWorker._update_ngram_corpus", ("self", "batch")),
    Seam(_NGRAM, "NGRAMWorker._prepare_draft_tokens", ("self", "batch")),
    Seam(_NGRAM, "NGRAMWorker.prev_token_ids"),
    Seam(_NGRAM, "NGRAMWorker.prev_accept_lens"),
    Seam(_NGRAM, "NGRAMWorker.alloc_memory_pool", ("self",)),
    Seam(_NGRAM, "NGRAMWorker.draft_token_num"),
    Seam(_NGRAM, "NGRAMWorker.grammar_tree_host"),
    Seam(_NGRAM, "NGRAMWorker.enable_overlap"),
    Seam(_NGRAM, "NgramCorpus"),
    Seam(_INFO, "NgramVerifyInput.__init__", ("self", "draft_token", "custom_mask", "positions")),
    Seam(_INFO, "NgramVerifyInput.accept_tokens"),
    Seam(_INFO, "NgramVerifyInput.accept_lens"),
    Seam("sglang.srt.speculative.base_spec_worker", "BaseSpecWorker.note_request_finished", ("self",)),
    Seam("sglang.srt.speculative.base_spec_worker", "BaseSpecWorker.init_cuda_graphs", ("self",)),
    Seam("sglang.srt.model_executor.forward_batch_info", "ForwardMode.TARGET_VERIFY"),
    Seam("sglang.srt.managers.schedule_batch", "ScheduleBatch.req_pool_indices_cpu"),
    Seam("sglang.srt.managers.schedule_batch", "ScheduleBatch.seq_lens_cpu"),
    Seam("sglang.srt.mem_cache.memory_pool", "ReqToTokenPool.req_to_token"),
    Seam(_SPEC_UTILS, "draft_tp_context"),
    Seam(_SPEC_UTILS, "prepare_mamba_track_for_verify", ("batch",)),
    Seam(_SPEC_UTILS, "record_stream_for_v2_verify", ("batch", "verify_input", "fwd_stream")),
    Seam(_GRAPHS, "capture_decode_graph"),
    Seam(_RUNNER, "ModelRunner._get_attention_backend", ("self", "init_new_workspace")),
    Seam(_RUNNER, "ModelRunner.decode_cuda_graph_runner"),
    Seam(_RUNNER, "ModelRunner.attn_backend"),
    Seam(_RUNNER, "ModelRunner.spec_algorithm"),
    Seam(_CONTEXT, "get_context"),
    Seam(_CONTEXT, "get_parallel"),
    Seam(_CONTEXT, "get_spec"),
    Seam(_CONTEXT, "get_disagg"),
    Seam(_CONTEXT, "get_exec"),
    Seam(_CONTEXT, "RuntimeContext.override", ("self", "source")),
    Seam(_CONTEXT, "RuntimeContext.config_leaf", ("self", "name")),
    Seam(_PARALLEL, "GroupCoordinator.all_gather_object", ("self", "obj")),
    Seam(_PARALLEL, "GroupCoordinator.broadcast_object", ("self", "obj", "src")),
)

# An EAGLE worker's states are its own and its draft model's attributes, swapped as SGLang's adaptive policy
# does; a plain decode is reported as its verification would be, and its draft model catches up as after one.
_EAGLE_WORKER: tuple[Seam, ...] = (
    Seam(
        _EAGLE,
        "EAGLEWorkerV2.forward_batch_generation",
        ("self", "batch", "on_publish", "grammar_barrier", "pp_proxy_tensors"),
    ),
    Seam(_EAGLE, "EAGLEWorkerV2.init_cuda_graphs", ("self",)),
    Seam(_BASE, "BaseSpecWorker"),
    Seam(_EAGLE, "EAGLEWorkerV2._stub_skipped_draft_extend", ("self", "batch", "batch_output")),
    *members(
        _EAGLE,
        "EAGLEWorkerV2",
        "adaptive_controller",
        "device",
        "speculative_algorithm",
        "speculative_num_draft_tokens",
        "speculative_num_steps",
        "topk",
    ),
    Seam(_EAGLE, "EagleDraftWorker.draft", ("self", "batch")),
    Seam(_EAGLE, "EAGLEWorkerV2.verify", ("self", "batch")),
    Seam("sglang.srt.utils.common", "async_d2h", ("tensor",)),
    Seam(_EAGLE, "EagleDraftWorker.init_attention_backend", ("self",)),
    Seam(_EAGLE, "EagleDraftWorker._capture_cuda_graphs", ("self",)),
    Seam(_EAGLE, "EagleDraftWorker._draft_extend_for_decode", ("self", "batch", "batch_result")),
    *members(
        _EAGLE,
        "EagleDraftWorker",
        "cuda_graph_runner",
        "cuda_graph_runner_for_draft_extend",
        "draft_attn_backend",
        "draft_extend_attn_backend",
        "draft_runner",
        "plan_stream",
        "speculative_num_draft_tokens",
        "speculative_num_steps",
        "topk",
    ),
    Seam("sglang.srt.mem_cache.allocation_sizing", "get_alloc_len_per_decode", ()),
    Seam(_BASE, "EagleDraftWorkerBase._rebuild_topk1_chain_buffers", ("self",)),
    Seam(_BASE, "EagleDraftWorkerBase._topk1_parents_prealloc"),
    Seam(_BASE, "EagleDraftWorkerBase._topk1_score_indices_prealloc"),
    Seam("sglang.srt.speculative.adaptive_runtime_state", "AdaptiveController.candidate_steps"),
    Seam(_STANDALONE, "StandaloneWorkerV2"),
    Seam("sglang.srt.speculative.eagle_info", "EagleDraftInput.bonus_tokens"),
    Seam("sglang.srt.speculative.eagle_info", "EagleDraftInput.topk_p"),
    Seam("sglang.srt.speculative.eagle_info", "EagleDraftInput.topk_index"),
    Seam("sglang.srt.model_executor.forward_batch_info", "CaptureHiddenMode.FULL"),
    Seam("sglang.srt.model_executor.forward_batch_info", "CaptureHiddenMode.NULL"),
    Seam("sglang.srt.managers.tp_worker", "TpModelWorker.forward_batch_generation", ("self", "batch")),
    Seam("sglang.srt.environ", "envs"),
    Seam(_MOE, "speculative_moe_backend_context", ()),
    Seam(_MOE, "speculative_moe_a2a_backend_context", ()),
)

# A DFLASH worker's states are what it makes for one length of a block.
_DFLASH_WORKER: tuple[Seam, ...] = (
    Seam(
        _DFLASH,
        "DFlashWorkerV2.forward_batch_generation",
        ("self", "batch", "on_publish", "grammar_barrier", "pp_proxy_tensors"),
    ),
    Seam(_DFLASH, "DFlashWorkerV2.init_cuda_graphs", ("self",)),
    Seam(_DFLASH, "DFlashWorkerV2._maybe_build_draft_sampler", ("self",)),
    Seam(_DFLASH, "DFlashWorkerV2._make_next_draft_input_decode", ("self",)),
    Seam(_DFLASH, "DFlashWorkerV2._append_target_hidden_to_draft_kv_by_loc", ("self",)),
    *members(
        _DFLASH,
        "DFlashWorkerV2",
        "_accept_bonus_buffer_cap",
        "_accept_bonus_buffer_slot",
        "_accept_len_buf",
        "_block_pos_offsets",
        "_bonus_id_bufs",
        "_commit_lens_bufs",
        "_draft_block_end_buf",
        "_draft_block_ids_buf",
        "_draft_block_positions_buf",
        "_draft_block_spec_info",
        "_draft_block_tokens_buf",
        "_draft_sampler",
        "_draft_seq_lens_cpu_buf",
        "_draft_verify_out_cache_loc_buf",
        "_new_seq_lens_bufs",
        "_out_tokens_bufs",
        "block_size",
        "device",
        "draft_model",
        "draft_model_runner",
        "speculative_num_draft_tokens",
    ),
    Seam("sglang.srt.models.dflash", "DFlashDraftModel.set_block_size", ("self", "block_size")),
    Seam(_RUNNER, "ModelRunner.capture_tail_hooks"),
    Seam(_DRAFT_COMMON, "build_block_pos_offsets", ()),
    Seam(_DRAFT_COMMON, "make_draft_block_spec_info", ()),
    Seam(_DRAFT_COMMON, "make_draft_sampler_capture_hook"),
)

_VERIFICATION: tuple[Seam, ...] = (
    Seam(
        "sglang.srt.speculative.eagle_utils",
        "eagle_sample",
        ("verify_input", "batch", "logits_output", "grammar_mask", "uno_target_max_top_k"),
    ),
    Seam(_SPEC_UTILS, "SIMULATE_ACC_LEN"),
    Seam("sglang.srt.layers.dp_attention", "is_dp_attention_enabled", ()),
    Seam("sglang.srt.utils.async_probe", "sanitize_nan_logits", ("logits", "msg")),
    Seam(_PARALLEL, "GroupCoordinator.broadcast", ("self", "input_", "src")),
    Seam("sglang.srt.managers.schedule_batch", "ScheduleBatch.return_logprob"),
    Seam("sglang.srt.managers.schedule_batch", "ScheduleBatch.sampling_info"),
    *members(
        _INFO,
        "NgramVerifyInput",
        "draft_token",
        "draft_token_num",
        "positions",
        "retrieve_next_token",
        "retrieve_next_sibling",
        "max_tree_depth",
    ),
    *members(
        "sglang.srt.speculative.eagle_info",
        "EagleVerifyInput",
        "draft_token",
        "draft_token_num",
        "positions",
        "retrieve_next_token",
        "retrieve_next_sibling",
        "max_tree_depth",
        "draft_probs",
    ),
    *members(
        "sglang.srt.sampling.sampling_batch_info",
        "SamplingBatchInfo",
        "temperatures",
        "top_ks",
        "top_ps",
        "min_ps",
        "is_all_greedy",
        "is_any_greedy",
        "need_top_k_sampling",
        "need_top_p_sampling",
        "need_min_p_sampling",
        "sampling_seed",
        "grammar_mask",
        "penalizer_orchestrator",
        "acc_additive_penalties",
        "acc_scaling_penalties",
        "logit_bias",
        "has_custom_logit_processor",
        "return_sampling_masks",
    ),
)

_CPU: tuple[Seam, ...] = (
    Seam(_NATIVE, "TorchNativeAttnBackend.forward_extend", ("self", "q", "k", "v", "layer", "forward_batch")),
    Seam(_NATIVE, "TorchNativeAttnBackend.forward_decode", ("self", "q", "k", "v", "layer", "forward_batch")),
    Seam("sglang.srt.mem_cache.memory_pool", "KVWriteLoc"),
    Seam(_CONTEXT, "attention_backends", ()),
    Seam(_OVERLAP, "FutureMap._resolve_spec_extras", ("self", "batch")),
    *members(
        _OVERLAP,
        "FutureMap",
        "need_topk",
        "topk_p_buf",
        "topk_index_buf",
        "hidden_states_buf",
        "output_tokens_buf",
    ),
    Seam(
        "sglang.srt.speculative.draft_utils",
        "DraftBackendFactory._create_backend",
        ("self", "backend_name", "backend_map"),
    ),
)

RELIED_ON: tuple[Seam, ...] = (
    *_START,
    *_ROUTES,
    *_REQUEST,
    *_IN_SCHEDULER,
    *_WORKER,
    *_EAGLE_WORKER,
    *PEAGLE,
    *_DFLASH_WORKER,
    *_VERIFICATION,
    *_CPU,
)
