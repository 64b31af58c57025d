"""What this plugin's variables are in vLLM, so that all it relies on can be checked by its source."""

from __future__ import annotations

from pathlib import Path

from specctl.engine.engine_check import Adapter
from specctl_vllm.patches import PATCHES

__all__ = ["ADAPTER"]

_GPU = "vllm.v1.worker.gpu"
_SCHEDULER = "vllm.v1.core.sched.scheduler:Scheduler"
_RUNNER_V1 = "vllm.v1.worker.gpu_model_runner:GPUModelRunner"
_INPUT_BATCH = f"{_GPU}.input_batch:InputBatch"
_HEAD = frozenset({"specctl_peagle", "specctl_hybrid"})

_OBJECTS: dict[str, tuple[str, ...]] = {
    "scheduler": (_SCHEDULER,),
    "_scheduler": (_SCHEDULER,),
    "scheduler_output": ("vllm.v1.core.sched.output:SchedulerOutput",),
    "new": ("vllm.v1.core.sched.output:NewRequestData",),
    "request": ("vllm.v1.request:Request",),
    "sampling_params": ("vllm.sampling_params:SamplingParams",),
    "model_runner_output": ("vllm.v1.outputs:ModelRunnerOutput",),
    "vllm_config": ("vllm.config.vllm:VllmConfig",),
    "parallel_config": ("vllm.config.parallel:ParallelConfig",),
    "scheduler_config": ("vllm.config.scheduler:SchedulerConfig",),
    "compilation_config": ("vllm.config.compilation:CompilationConfig",),
    "model_config": ("vllm.config.model:ModelConfig",),
    "speculative_config": ("vllm.config.speculative:SpeculativeConfig",),
    "engine_args": ("vllm.engine.arg_utils:EngineArgs",),
    "runner": (_RUNNER_V1,),
    "input_batch": (_INPUT_BATCH, "vllm.v1.worker.gpu_input_batch:InputBatch"),
    "block_tables": (f"{_GPU}.block_table:BlockTables", "specctl_vllm.compat.head_tables:HeadBlockTables"),
    "input_buffers": (f"{_GPU}.input_batch:InputBuffers",),
    "kv_cache_config": ("vllm.v1.kv_cache_interface:KVCacheConfig",),
    "rejection": (f"{_GPU}.spec_decode.rejection_sampler:RejectionSampler",),
    "sampler": (f"{_GPU}.sample.sampler:Sampler",),
    "sampling_states": (f"{_GPU}.sample.states:SamplingStates",),
    "sampler_output": (f"{_GPU}.sample.output:SamplerOutput",),
    "processor": (
        f"{_GPU}.sample.logit_bias:LogitBiasState",
        f"{_GPU}.sample.penalties:PenaltiesState",
        f"{_GPU}.sample.bad_words:BadWordsState",
    ),
    "thinking_budget_state": (f"{_GPU}.sample.thinking_budget:ThinkingBudgetState",),
    "lora_request": ("vllm.lora.request:LoRARequest",),
    "kv_cache_manager": ("vllm.v1.core.kv_cache_manager:KVCacheManager",),
    "desc": (f"{_GPU}.cudagraph_utils:BatchExecutionDescriptor",),
    "graph": (f"{_GPU}.cudagraph_utils:BatchExecutionDescriptor",),
    "manager": (f"{_GPU}.cudagraph_utils:CudaGraphManager",),
    "engine_core": ("vllm.v1.engine.core_client:AsyncMPClient",),
    "client": ("vllm.v1.engine.core_client:AsyncMPClient",),
    "metadata": ("vllm.v1.attention.backend:CommonAttentionMetadata",),
    "builder": ("vllm.v1.attention.backends.flash_attn:FlashAttentionMetadataBuilder",),
    "group": ("vllm.v1.worker.utils:AttentionGroup",),
    "dp_group": ("vllm.distributed.parallel_state:GroupCoordinator",),
    "current_platform": ("vllm.platforms.interface:Platform",),
    "target_model_config": ("vllm.config.model:ModelConfig",),
    "req_states": (f"{_GPU}.states:RequestState",),
    "_req_states": (f"{_GPU}.states:RequestState",),
}

ADAPTER = Adapter(
    package="vllm",
    plugin="specctl_vllm",
    folder=Path(__file__).parent,
    patches=PATCHES,
    objects=_OBJECTS,
    joined={"SteeredMixin": _SCHEDULER},
    methods={
        "compat/head_graphs": _HEAD,
        "compat/head_tables": _HEAD,
        "compat/peagle_device": _HEAD,
        "compat/hybrid_device": frozenset({"specctl_hybrid"}),
        "compat/resting_head": frozenset({"specctl_hybrid"}),
        "compat/eagle_device": frozenset({"eagle", "eagle3"}),
        "proposers/suffix": frozenset({"specctl_suffix"}),
        "compat/suffix_device": frozenset({"specctl_suffix"}),
        "compat/suffix_source": frozenset({"specctl_suffix", "specctl_hybrid"}),
    },
)
