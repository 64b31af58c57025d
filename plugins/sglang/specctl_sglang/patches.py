"""Everything that this plugin changes in SGLang: the one list.

A patch is put in force by SGLang's own hook registry (``compat.hooks``); its wrapper is in ``compat`` and is
imported when it is needed, so that the list can be read without SGLang.
"""

from __future__ import annotations

from specctl.engine.patches import Patch, imported

__all__ = ["AT_START", "BY_RANKS", "CPU", "DRAFT_MODELS", "PATCHES", "of_algorithm", "of_process"]

CPU = "cpu stand-ins"
"""Method of the patches for a machine without a GPU, which tests and the demo use."""
DRAFT_MODELS = frozenset({"eagle", "eagle3", "nextn", "standalone", "specctl_peagle"})
BY_RANKS = frozenset({"eagle", "eagle3", "nextn"})
"""Methods whose ranks can share their steps."""
_SUFFIX, _PEAGLE, _NGRAM = "specctl_suffix", "specctl_peagle", "ngram"
_SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"
_ALGORITHM = "sglang.srt.speculative.spec_info:SpeculativeAlgorithm"
_SYNC = "sglang.srt.managers.scheduler_components.dp_attn"
_REGISTRY = "https://github.com/sgl-project/sglang/pull/23991"
_SUFFIX_PR = "https://github.com/sgl-project/sglang/pull/27582"
_ADAPTIVE = "https://github.com/sgl-project/sglang/issues/23705"


def _no_thread(why: str) -> str:
    return f"none: {why}"


PATCHES: tuple[Patch, ...] = (
    Patch(
        "sglang.srt.arg_groups.speculative_hook:handle_speculative_decoding",
        imported("specctl_sglang.compat.peagle_algorithm", "wrap_handle_speculative_decoding"),
        "command line",
        "SGLang reads the head's config before it asks the algorithm, and does not know a P-EAGLE head.",
        _no_thread("P-EAGLE is not discussed there"),
        "an algorithm is asked before its draft model is read",
        DRAFT_MODELS,
    ),
    Patch(
        "sglang.srt.entrypoints.http_server:set_global_state",
        imported("specctl_sglang.compat.http_routes", "wrap_set_global_state"),
        "server",
        "The application learns of the scheduler's process by this function, and by no other.",
        _no_thread("no thread about routes of a plugin"),
        "a plugin can add routes with access to the schedulers",
        entries=("set_global_state", "self_check"),
    ),
    Patch(
        "sglang.srt.managers.tokenizer_manager:TokenizerManager.auto_create_handle_loop",
        imported("specctl_sglang.compat.embedded", "wrap_auto_create_handle_loop"),
        "server",
        "A program that embeds the Engine has no HTTP server, and so no routes.",
        _no_thread("no thread about routes of a plugin"),
        "an Engine tells plugins of its event loop",
    ),
    Patch(
        "sglang.srt.sampling.sampling_params:SamplingParams.verify",
        imported("specctl_sglang.compat.requests", "wrap_verify"),
        "server",
        "What a request says to a plugin is not checked where it comes in.",
        _no_thread("no thread about what plugins read of requests"),
        "a plugin can check its keys of custom_params",
    ),
    Patch(
        "sglang.srt.entrypoints.openai.protocol:ChatCompletionRequest.to_sampling_params",
        imported("specctl_sglang.compat.requests", "wrap_to_sampling_params"),
        "server",
        "The scheduler does not learn that a request may call tools.",
        _no_thread("no thread about what plugins read of requests"),
        "sampling parameters say whether a request has tools",
    ),
    Patch(
        "sglang.srt.entrypoints.openai.protocol:ResponsesRequest.to_sampling_params",
        imported("specctl_sglang.compat.requests", "wrap_to_sampling_params"),
        "server",
        "The same for the other API with tools.",
        _no_thread("no thread about what plugins read of requests"),
        "sampling parameters say whether a request has tools",
    ),
    Patch(
        f"{_SCHEDULER}.__init__",
        imported("specctl_sglang.compat.scheduler", "wrap_init"),
        "engine",
        "A table steers one scheduler, and a worker does not get to know it.",
        _ADAPTIVE,
        "a plugin is told of the scheduler",
        entries=("Scheduler.__init__",),
    ),
    Patch(
        f"{_SCHEDULER}.run_batch",
        imported("specctl_sglang.compat.scheduler", "wrap_run_batch"),
        "engine",
        "The setting of a step depends on its batch, prompts included, which a worker does not see.",
        _ADAPTIVE,
        "a plugin is told of each batch before its launch",
        entries=("Scheduler.run_batch", "draft"),
    ),
    Patch(
        f"{_SCHEDULER}.process_batch_result",
        imported("specctl_sglang.compat.scheduler", "wrap_process_batch_result"),
        "engine",
        "What became of a step's tokens is known after it alone.",
        "https://github.com/sgl-project/sglang/issues/34839",
        "a plugin is told of each step's result",
        entries=("Scheduler.process_batch_result",),
    ),
    Patch(
        f"{_SCHEDULER}.get_internal_state",
        imported("specctl_sglang.compat.scheduler", "wrap_get_internal_state"),
        "engine",
        "No operation carries a text to a scheduler and an answer back.",
        _ADAPTIVE,
        "a plugin can call its part in a scheduler",
        entries=("Scheduler.get_internal_state",),
    ),
    Patch(
        f"{_SYNC}:prepare_mlp_sync_batch_raw",
        imported("specctl_sglang.compat.rank_agreement", "wrap_prepare_mlp_sync_batch_raw"),
        "engine",
        "Ranks with data-parallel attention run every step together, and must make as many drafts.",
        _ADAPTIVE,
        "ranks agree on a number of drafts",
        BY_RANKS,
        entries=("draft",),
    ),
    Patch(
        f"{_SYNC}:MLPSyncBatchInfo._get_local_tensor",
        imported("specctl_sglang.compat.rank_agreement", "wrap_local_tensor"),
        "engine",
        "What a rank wants has no place in what ranks tell each other before a step.",
        _ADAPTIVE,
        "ranks agree on a number of drafts",
        BY_RANKS,
    ),
    Patch(
        f"{_SYNC}:MLPSyncBatchInfo._get_fallback_tensor",
        imported("specctl_sglang.compat.rank_agreement", "wrap_fallback_tensor"),
        "engine",
        "The row of a rank that is not there has as many numbers.",
        _ADAPTIVE,
        "ranks agree on a number of drafts",
        BY_RANKS,
    ),
    Patch(
        f"{_SYNC}:MLPSyncBatchInfo.all_gather",
        imported("specctl_sglang.compat.rank_agreement", "wrap_all_gather"),
        "engine",
        "What the others want is read where SGLang reads what they told.",
        _ADAPTIVE,
        "ranks agree on a number of drafts",
        BY_RANKS,
        entries=("draft",),
    ),
    Patch(
        f"{_ALGORITHM}.create_worker",
        imported("specctl_sglang.compat.algorithms", "wrap_create_worker"),
        "engine",
        "The registry of algorithms takes new names only; SGLang's own need a worker with a table.",
        _ADAPTIVE,
        "a plugin can register a worker for an algorithm of SGLang's",
        DRAFT_MODELS - {_PEAGLE} | {_NGRAM, "dflash"},
        entries=("SpeculativeAlgorithm.create_worker",),
    ),
    Patch(
        f"{_ALGORITHM}.create_future_map",
        imported("specctl_sglang.compat.algorithms", "wrap_create_future_map"),
        "engine",
        "NGRAM asks the device for lengths and tokens that come to the host anyway.",
        _no_thread("no thread about what NGRAM waits for"),
        "NGRAM reads the copies that the scheduler makes",
        frozenset({_NGRAM}),
        entries=("FutureMap.resolve_seq_lens_cpu",),
    ),
    Patch(
        "sglang.srt.speculative.eagle_utils:eagle_sample",
        imported("specctl_sglang.compat.verification", "wrap_eagle_sample"),
        "worker",
        "There is no seam for a verifier, and which nodes of a tree were accepted is not reported.",
        _REGISTRY,
        "a verifier can be registered, and a result names the accepted nodes",
        entries=("eagle_sample",),
    ),
    Patch(
        "sglang.srt.speculative.eagle_worker_v2:EagleDraftWorker.draft",
        imported("specctl_sglang.compat.eagle_states", "wrap_draft"),
        "worker",
        "A draft model has as many branches as at start, and does not tell which drafts a tree was made of.",
        "https://github.com/sgl-project/sglang/pull/24054",
        "the number of branches can change while a server runs",
        DRAFT_MODELS - {_PEAGLE},
    ),
    Patch(
        "sglang.srt.speculative.eagle_worker_v2:EagleDraftWorker",
        imported("specctl_sglang.compat.peagle_worker", "wrap_EagleDraftWorker"),
        "worker",
        "The worker's constructor makes its draft worker by its module's name for it.",
        _no_thread("P-EAGLE is not discussed there"),
        "a worker asks a method for its draft worker",
        frozenset({_PEAGLE}),
    ),
    Patch(
        "sglang.srt.speculative.ngram_worker:NgramCorpus",
        imported("specctl_sglang.compat.suffix_worker", "wrap_NgramCorpus"),
        "worker",
        "The worker's constructor makes NGRAM's corpus, which would be compiled at start for nothing.",
        _SUFFIX_PR,
        "a worker asks a method for its corpus",
        frozenset({_SUFFIX}),
        entries=("FutureMap.resolve_seq_lens_cpu",),
    ),
    Patch(
        "sglang.srt.speculative.ngram_worker:move_accept_tokens_to_target_kvcache",
        imported("specctl_sglang.compat.suffix_worker", "wrap_move_accept_tokens_to_target_kvcache"),
        "worker",
        "Accepted tokens of a chain are copied in the KV cache to where they already are.",
        _SUFFIX_PR,
        "NGRAM moves no chain, as EAGLE does not",
        frozenset({_SUFFIX}),
    ),
    Patch(
        "sglang.srt.layers.attention.torch_native_backend:TorchNativeAttnBackend.forward_extend",
        imported("specctl_sglang.compat.cpu_attention", "wrap_forward_extend"),
        "worker",
        "The attention of a CPU knows prompts and single tokens, and no draft.",
        _no_thread("speculation on a CPU is for tests"),
        "torch_native verifies drafts",
        frozenset({CPU}),
    ),
    Patch(
        "sglang.srt.layers.attention.torch_native_backend:TorchNativeAttnBackend.__init__",
        imported("specctl_sglang.compat.cpu_attention", "wrap_backend_init"),
        "worker",
        "The attention of a CPU does not say how long the context of a padding row is.",
        _no_thread("data-parallel attention on a CPU is for tests"),
        "torch_native goes with data-parallel attention",
        frozenset({CPU}),
    ),
    Patch(
        "sglang.srt.speculative.draft_utils:DraftBackendFactory._create_backend",
        imported("specctl_sglang.compat.cpu_stand_ins", "wrap_create_backend"),
        "worker",
        "A draft model of several passes has no attention on a CPU.",
        _no_thread("speculation on a CPU is for tests"),
        "torch_native drafts",
        frozenset({CPU}),
    ),
    Patch(
        "sglang.srt.managers.overlap_utils:FutureMap._resolve_spec_extras",
        imported("specctl_sglang.compat.cpu_stand_ins", "wrap_resolve_spec_extras"),
        "worker",
        "What an EAGLE step hands to the next is gathered by a Triton kernel, on a stream.",
        _no_thread("speculation on a CPU is for tests"),
        "the overlap scheduler speculates on a CPU",
        frozenset({CPU}),
    ),
)


AT_START = frozenset({"Scheduler.__init__", "SpeculativeAlgorithm.create_worker", "set_global_state"})
"""Entries that no step calls: what fails in them leaves the server without specctl."""


def of_algorithm(algorithm: str) -> list[Patch]:
    """Those that replace a class for an algorithm of ours, once it is known that the server runs it."""
    return [patch for patch in PATCHES if patch.methods == {algorithm.lower()}]


def of_process(*processes: str) -> list[Patch]:
    return [patch for patch in PATCHES if patch.process in processes]
