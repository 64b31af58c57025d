"""What this plugin's variables are in SGLang, so that all it relies on can be checked by its source."""

from __future__ import annotations

from pathlib import Path

from specctl.engine.engine_check import Adapter
from specctl_sglang.patches import BY_RANKS, DRAFT_MODELS, PATCHES

__all__ = ["ADAPTER"]

_SPEC = "sglang.srt.speculative"
_BATCH = "sglang.srt.managers.schedule_batch:ScheduleBatch"
_SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"
_RUNNER = "sglang.srt.model_executor.model_runner:ModelRunner"
_WORKERS = (
    f"{_SPEC}.eagle_worker_v2:EAGLEWorkerV2",
    f"{_SPEC}.dflash_worker_v2:DFlashWorkerV2",
    f"{_SPEC}.ngram_worker:NGRAMWorker",
    "specctl_sglang.compat.steered:Steered",
)
_DRAFTERS = (f"{_SPEC}.eagle_worker_v2:EagleDraftWorker", "specctl_sglang.compat.peagle_worker:PEagleDrafter")
_VERIFIED = (f"{_SPEC}.eagle_info:EagleVerifyInput", f"{_SPEC}.ngram_info:NgramVerifyInput")
_DRAFT_INPUTS = (f"{_SPEC}.eagle_info:EagleDraftInput", f"{_SPEC}.ngram_info:NgramVerifyInput")
_SAMPLING = ("sglang.srt.sampling.sampling_batch_info:SamplingBatchInfo",)
_PEAGLE = frozenset({"specctl_peagle"})

_OBJECTS: dict[str, tuple[str, ...]] = {
    "batch": (_BATCH,),
    "running_batch": (_BATCH,),
    "last_batch": (_BATCH,),
    "request": ("sglang.srt.managers.schedule_batch:Req",),
    "sampling_params": ("sglang.srt.sampling.sampling_params:SamplingParams",),
    "scheduler": (_SCHEDULER,),
    "_scheduler": (_SCHEDULER,),
    "result": ("sglang.srt.managers.utils:GenerationBatchResult",),
    "batch_result": ("sglang.srt.managers.utils:GenerationBatchResult",),
    "logits_output": ("sglang.srt.layers.logits_processor:LogitsProcessorOutput",),
    "recv_req": ("sglang.srt.managers.io_struct:GetInternalStateReq",),
    "target_worker": ("sglang.srt.managers.tp_worker:TpModelWorker",),
    "model_runner": (_RUNNER,),
    "draft_runner": (_RUNNER,),
    "model_config": ("sglang.srt.configs.model_config:ModelConfig",),
    "worker": _WORKERS,
    "_worker": _WORKERS,
    "draft_worker": _WORKERS,
    "drafter": _DRAFTERS,
    "_drafter": _DRAFTERS,
    "verify_input": _VERIFIED,
    "spec_info": (*_DRAFT_INPUTS, *_VERIFIED),
    "draft_input": _DRAFT_INPUTS,
    "sampling": _SAMPLING,
    "sampling_info": _SAMPLING,
    "forward_mode": ("sglang.srt.model_executor.forward_batch_info:ForwardMode",),
    "forward_batch": ("sglang.srt.model_executor.forward_batch_info:ForwardBatch",),
    "future_map": ("sglang.srt.managers.overlap_utils:FutureMap",),
    "req_to_token_pool": ("sglang.srt.mem_cache.memory_pool:ReqToTokenPool",),
    "token_to_kv_pool": ("sglang.srt.mem_cache.memory_pool:KVCache",),
    "pool": ("sglang.srt.mem_cache.memory_pool:KVCache",),
    "mha_pool": ("sglang.srt.mem_cache.memory_pool:MHATokenToKVPool",),
    "token_to_kv_pool_allocator": ("sglang.srt.mem_cache.allocator.base:BaseTokenToKVPoolAllocator",),
    "allocator": ("sglang.srt.mem_cache.allocator.base:BaseTokenToKVPoolAllocator",),
    "tree_cache": ("sglang.srt.mem_cache.base_prefix_cache:BasePrefixCache",),
    "factory": (f"{_SPEC}.draft_utils:DraftBackendFactory",),
    "tp_group": ("sglang.srt.distributed.parallel_state:GroupCoordinator",),
    "_tp_group": ("sglang.srt.distributed.parallel_state:GroupCoordinator",),
    "_request_group": ("sglang.srt.distributed.parallel_state:GroupCoordinator",),
    "local_batch": (_BATCH,),
    "info": ("sglang.srt.managers.scheduler_components.dp_attn:MLPSyncBatchInfo",),
}

ADAPTER = Adapter(
    package="sglang",
    plugin="specctl_sglang",
    folder=Path(__file__).parent,
    patches=PATCHES,
    objects=_OBJECTS,
    joined={},
    methods={
        "compat/accepted_nodes": DRAFT_MODELS,
        "compat/dflash_states": frozenset({"dflash"}),
        "compat/dflash_worker": frozenset({"dflash"}),
        "compat/eagle_states": DRAFT_MODELS,
        "compat/eagle_worker": DRAFT_MODELS,
        "compat/first_use": DRAFT_MODELS | {"dflash", "ngram", "specctl_suffix"},
        "compat/host_relay": frozenset({"ngram", "specctl_suffix"}),
        "compat/ngram_worker": frozenset({"ngram"}),
        "compat/peagle_algorithm": _PEAGLE,
        "compat/peagle_graph": _PEAGLE,
        "compat/peagle_model": _PEAGLE,
        "compat/peagle_prompts": _PEAGLE,
        "compat/peagle_worker": _PEAGLE,
        "compat/rank_agreement": BY_RANKS,
        "compat/steered_states": DRAFT_MODELS | {"dflash"},
        "compat/runtime_states": DRAFT_MODELS | {"dflash"},
        "compat/steered_worker": frozenset({"ngram", "specctl_suffix"}),
        "compat/suffix_algorithm": frozenset({"specctl_suffix"}),
        "compat/suffix_worker": frozenset({"specctl_suffix"}),
    },
    unchecked=frozenset({"compat/releases", "cpu_serve"}),
)
