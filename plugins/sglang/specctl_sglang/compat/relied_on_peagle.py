"""What SPECCTL_PEAGLE relies on inside SGLang, a part of ``relied_on``."""

from __future__ import annotations

from specctl.engine.seams import Seam, members

__all__ = ["PEAGLE"]

_SPEC_ARGUMENTS = "sglang.srt.arg_groups.speculative_hook"
_REGISTRY = "sglang.srt.speculative.spec_registry"
_EAGLE = "sglang.srt.speculative.eagle_worker_v2"
_RUNNER = "sglang.srt.model_executor.model_runner"
_GRAPHS = "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner"

# All drafts of P-EAGLE come from the draft-extend pass: a model of ours, in SGLang's EAGLE-3 shape, that is
# run over more rows than SGLang would, by the same functions and graphs.
PEAGLE: tuple[Seam, ...] = (
    Seam(_SPEC_ARGUMENTS, "handle_speculative_decoding", ("server_args",)),
    Seam(_SPEC_ARGUMENTS, "_handle_eagle_family", ("server_args",)),
    Seam("sglang.srt.arg_groups.overrides", "model_config_of"),
    Seam("sglang.srt.speculative.spec_utils", "load_token_map", ("token_map_path",)),
    Seam(_REGISTRY, "CustomSpecAlgo.is_eagle", ("self",)),
    Seam(_REGISTRY, "CustomSpecAlgo.is_eagle3", ("self",)),
    Seam(_REGISTRY, "CustomSpecAlgo.supports_grammar_overlap", ("self",)),
    Seam(_REGISTRY, "CustomSpecAlgo.resolve_max_speculative_num_draft_tokens", ("self", "server_args")),
    Seam(
        _REGISTRY,
        "CustomSpecAlgo.get_num_tokens_per_req_for_target_verify",
        ("self", "num_draft_tokens", "is_draft_worker"),
    ),
    Seam("sglang.srt.models.registry", "ModelRegistry"),
    Seam("sglang.srt.models.registry", "_ModelRegistry.is_arch_supported", ("self", "architecture")),
    Seam("sglang.srt.models.registry", "_ModelRegistry.models"),
    *(
        Seam("sglang.srt.models.llama_eagle3", f"LlamaForCausalLMEagle3.{name}", parameters)
        for name, parameters in (
            ("__init__", ("self", "config", "quant_config", "prefix")),
            ("load_weights", ("self", "weights")),
            ("hot_token_id", ()),
            ("logits_processor", ()),
            ("lm_head", ()),
            ("model", ()),
        )
    ),
    Seam("sglang.srt.models.llama_eagle3", "LlamaModel.fc"),
    Seam("sglang.srt.models.llama_eagle3", "LlamaModel.layers"),
    Seam("sglang.srt.models.llama_eagle3", "LlamaDecoderLayer.hidden_norm"),
    Seam("sglang.srt.models.llama", "LlamaForCausalLM.set_embed", ("self", "embed")),
    Seam("sglang.srt.layers.linear", "QKVParallelLinear"),
    Seam("sglang.srt.layers.logits_processor", "LogitsMetadata.from_forward_batch", ("cls", "forward_batch")),
    Seam("sglang.srt.layers.logits_processor", "LogitsProcessorOutput.next_token_logits"),
    Seam(
        "sglang.srt.layers.logits_processor",
        "LogitsProcessor._get_logits",
        ("self", "hidden_states", "lm_head", "logits_metadata", "embedding_bias", "use_logits_buffer"),
    ),
    Seam(_EAGLE, "EagleDraftWorker._draft_extend_for_prefill", ("self", "batch", "target_hidden_states")),
    Seam("sglang.srt.speculative.eagle_worker_common", "build_eagle_verify_input", ("batch", "draft_input")),
    Seam(
        "sglang.srt.speculative.eagle_worker_common",
        "prepare_for_draft_extend",
        ("draft_extend_input", "batch", "predict", "num_draft_tokens"),
    ),
    Seam(_GRAPHS, "EAGLEDraftExtendCudaGraphRunner.execute", ("self", "forward_batch", "select_index")),
    Seam(_GRAPHS, "EAGLEDraftExtendCudaGraphRunner._make_graph_key", ("self", "bs")),
    Seam(
        "sglang.srt.model_executor.runner.base_cuda_graph_runner",
        "BaseCudaGraphRunner._pad_to_bucket",
        ("raw_size", "buckets"),
    ),
    *members(
        _GRAPHS,
        "EAGLEDraftExtendCudaGraphRunner",
        "backend",
        "buffers",
        "capture_bs",
        "captured_req_width",
        "device_module",
        "disable_padding",
        "max_bs",
        "require_gathered_buffer",
        "require_mlp_sync",
        "require_mlp_tp_gather",
        "seq_len_fill_value",
    ),
    *members(
        _GRAPHS,
        "EagleDraftExtendInputBuffers",
        "input_ids",
        "hidden_states",
        "out_cache_loc",
        "select_index",
        "positions",
        "seq_lens",
        "extend_seq_lens",
        "req_pool_indices",
    ),
    Seam(
        "sglang.srt.model_executor.runner_backend.full_cuda_graph_backend",
        "FullCudaGraphBackend.replay",
        ("self", "shape_key", "static_forward_batch"),
    ),
    *members(
        "sglang.srt.speculative.eagle_info",
        "EagleDraftExtendInput",
        "hidden_states",
        "num_correct_drafts",
        "num_accept_tokens",
        "num_tokens_per_req",
        "num_tokens_for_logprob_per_req",
        "select_index",
    ),
    Seam("sglang.srt.speculative.eagle_info", "EagleDraftInput.hidden_states"),
    # Drafts behind a prompt: places for their rows, and SGLang's pass over a prompt with more rows than that.
    Seam("sglang.srt.mem_cache.allocation", "alloc_for_spec_decode", ("tree_cache", "req_to_token_pool")),
    Seam("sglang.srt.mem_cache.allocation_sizing", "page_aligned_decode_alloc_lens", ("reqs",)),
    Seam(
        "sglang.srt.mem_cache.allocator.base", "BaseTokenToKVPoolAllocator.check_decode_capacity", ("self",)
    ),
    Seam(
        "sglang.srt.model_executor.forward_batch_info",
        "ForwardBatch.init_new",
        ("cls", "batch", "model_runner"),
    ),
    *members(
        "sglang.srt.managers.schedule_batch",
        "ScheduleBatch",
        "chunked_req",
        "extend_lens",
        "extend_num_tokens",
        "input_embeds",
        "is_prefill_only",
        "replace_embeds",
        "seq_lens_cpu",
        "seq_lens_sum",
    ),
    Seam("sglang.srt.model_executor.forward_batch_info", "ForwardMode.EXTEND"),
    Seam("sglang.srt.model_executor.forward_batch_info", "CaptureHiddenMode.LAST"),
    Seam(_RUNNER, "ModelRunner.shared_read_done_event"),
    Seam("sglang.srt.model_executor.cuda_graph_config", "check_cuda_graph_backend", ("phase",)),
    Seam("sglang.srt.model_executor.cuda_graph_config", "Backend.DISABLED"),
    Seam("sglang.srt.model_executor.cuda_graph_config", "Phase.DECODE"),
    Seam(
        "sglang.srt.layers.attention.base_attn_backend",
        "AttentionBackend.draft_extend_metadata_captured_in_graph",
        ("self",),
    ),
    Seam("sglang.srt.mem_cache.memory_pool", "KVCache.get_key_buffer", ("self", "layer_id")),
    Seam("sglang.srt.mem_cache.memory_pool", "KVCache.get_value_buffer", ("self", "layer_id")),
)
