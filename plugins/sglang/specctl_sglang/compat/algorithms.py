"""Names for ``--speculative-algorithm``."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from sglang.srt.environ import envs
from sglang.srt.runtime_context import get_disagg, get_exec, get_lora, get_parallel
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from specctl.engine.guard import GUARD
from specctl_sglang.asked import misfits
from specctl_sglang.compat.releases import has_dp_attention
from specctl_sglang.patches import of_algorithm
from specctl_sglang.terms import PEAGLE, SUFFIX, method_of

__all__ = ["register", "why_as_stock", "wrap_create_future_map", "wrap_create_worker"]


def register(lost: Collection[str]) -> None:
    """All but ``lost`` methods. Workers are imported when one is built: their modules load the model's."""
    add = partial(SpeculativeAlgorithm.register, supports_overlap=True)
    if method_of(SUFFIX) not in lost:
        from specctl_sglang.compat.suffix_algorithm import SuffixAlgorithm

        add(SUFFIX, spec_class=SuffixAlgorithm)(_suffix_worker)
    if method_of(PEAGLE) not in lost:
        from specctl_sglang.compat.peagle_algorithm import PEagleAlgorithm

        add(PEAGLE, spec_class=PEagleAlgorithm)(_peagle_worker)


def _suffix_worker(_server_args: Any) -> type:
    from specctl_sglang.compat import hooks
    from specctl_sglang.compat.suffix_worker import SuffixWorker

    hooks.now(of_algorithm(SUFFIX))

    return SuffixWorker


def _peagle_worker(_server_args: Any) -> type:
    from specctl_sglang.compat import hooks
    from specctl_sglang.compat.peagle_algorithm import register_model
    from specctl_sglang.compat.peagle_worker import PEagleWorker

    hooks.now(of_algorithm(PEAGLE))
    register_model()
    return PEagleWorker


def wrap_create_worker(original: Any) -> Any:
    """Stock algorithms get workers with a table, where the user asked for it."""

    def create_worker(algorithm: Any, server_args: Any) -> Any:
        entry = "SpeculativeAlgorithm.create_worker"
        is_lost = method_of(algorithm.name) in misfits()
        made = None if is_lost else GUARD.call(entry, None, _steered_worker, original, algorithm, server_args)
        return original(algorithm, server_args) if made is None else made

    return create_worker


def wrap_create_future_map(original: Any) -> Any:
    def create_future_map(algorithm: Any, *args: Any, **kwargs: Any) -> Any:
        return _steered_future_map(original, algorithm, *args, **kwargs)

    return create_future_map


def _steered_worker(original: Any, algorithm: Any, server_args: Any) -> Any:
    if algorithm is SpeculativeAlgorithm.NGRAM and why_as_stock("NGRAMWorker") is None:
        from specctl_sglang.compat.ngram_worker import SteeredNgramWorker

        return SteeredNgramWorker
    worker = original(algorithm, server_args)
    if why_as_stock(worker.__name__) is not None:
        return worker
    if worker.__name__ == "DFlashWorkerV2":
        from specctl_sglang.compat.dflash_worker import SteeredDflash

        return SteeredDflash
    from specctl_sglang.compat import eagle_worker

    is_standalone = worker.__name__ == "StandaloneWorkerV2"
    return eagle_worker.SteeredStandalone if is_standalone else eagle_worker.SteeredEagle


def why_as_stock(worker: str) -> str | None:
    """Why one of SGLang's own workers cannot be steered, by the name of its class; None: it can."""
    if worker not in ("EAGLEWorkerV2", "StandaloneWorkerV2", "DFlashWorkerV2", "NGRAMWorker"):
        return f"its worker {worker} prepares one number of drafts, at start"
    modes = {
        "pipeline parallelism": get_parallel().pp_size > 1,
        "data-parallel attention": has_dp_attention(get_parallel()) and not _agrees_by_ranks(worker),
        "two-batch overlap": get_exec().overlap.enable_two_batch_overlap,
        "pdmux": get_disagg().enable_pdmux,
        "prefill/decode disaggregation": get_disagg().disaggregation_mode not in (None, "null"),
        # What a batch's adapters are told of graphs is made for the number at start.
        "LoRA": bool(get_lora().enable_lora),
    }
    used = [name for name, is_on in modes.items() if is_on]
    return f"a state for each number of drafts does not go with {', '.join(used)}" if used else None


def _agrees_by_ranks(worker: str) -> bool:
    """Whether ranks of one of SGLang's workers can share a table; else they run as stock."""
    modes = ("SGLANG_SCHEDULER_SKIP_ALL_GATHER", "SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION")
    is_apart = any(getattr(envs, mode).get() for mode in modes if hasattr(envs, mode))
    return worker == "EAGLEWorkerV2" and not is_apart


def _steered_future_map(original: Any, algorithm: Any, *args: Any, **kwargs: Any) -> Any:
    if algorithm is not SpeculativeAlgorithm.NGRAM:
        return original(algorithm, *args, **kwargs)
    from specctl_sglang.compat.host_relay import HostRelayMap

    device, req_to_token_pool, *more = args
    return HostRelayMap(device, algorithm, req_to_token_pool, *more, **kwargs)
