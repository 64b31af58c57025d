"""Names for ``--speculative-algorithm``."""

from __future__ import annotations

from typing import Any

from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_disagg, get_exec, get_parallel
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from specctl_sglang.terms import PEAGLE, SUFFIX

__all__ = ["register", "steer_stock", "why_as_stock"]


def register() -> None:
    """Workers are imported when one is built: their modules load the model's."""
    from specctl_sglang.compat.peagle_algorithm import PEagleAlgorithm, attend_to_heads
    from specctl_sglang.compat.suffix_algorithm import SuffixAlgorithm

    SpeculativeAlgorithm.register(SUFFIX, supports_overlap=True, spec_class=SuffixAlgorithm)(_suffix_worker)
    SpeculativeAlgorithm.register(PEAGLE, supports_overlap=True, spec_class=PEagleAlgorithm)(_peagle_worker)
    attend_to_heads()


def _suffix_worker(_server_args: Any) -> type:
    from specctl_sglang.compat.suffix_worker import SuffixWorker

    return SuffixWorker


def _peagle_worker(_server_args: Any) -> type:
    from specctl_sglang.compat.peagle_algorithm import register_model
    from specctl_sglang.compat.peagle_worker import PEagleWorker

    register_model()
    return PEagleWorker


def steer_stock() -> None:
    """Stock algorithms get workers with a table, where the user asked for it.

    Reason for the hooks: the registry takes new names only.
    """
    from specctl_sglang.compat import accepted_nodes

    accepted_nodes.install()
    algorithm = "sglang.srt.speculative.spec_info.SpeculativeAlgorithm"
    HookRegistry.register(f"{algorithm}.create_worker", _steered_worker, HookType.AROUND)
    HookRegistry.register(f"{algorithm}.create_future_map", _steered_future_map, HookType.AROUND)


def _steered_worker(original: Any, algorithm: Any, server_args: Any) -> Any:
    if algorithm is SpeculativeAlgorithm.NGRAM:
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
    if worker not in ("EAGLEWorkerV2", "StandaloneWorkerV2", "DFlashWorkerV2"):
        return f"its worker {worker} prepares one number of drafts, at start"
    modes = {
        "pipeline parallelism": get_parallel().pp_size > 1,
        "data-parallel attention": get_parallel().enable_dp_attention,
        "two-batch overlap": get_exec().overlap.enable_two_batch_overlap,
        "pdmux": get_disagg().enable_pdmux,
    }
    used = [name for name, is_on in modes.items() if is_on]
    return f"a state for each number of drafts does not go with {', '.join(used)}" if used else None


def _steered_future_map(original: Any, algorithm: Any, *args: Any, **kwargs: Any) -> Any:
    if algorithm is not SpeculativeAlgorithm.NGRAM:
        return original(algorithm, *args, **kwargs)
    from specctl_sglang.compat.host_relay import HostRelayMap

    device, req_to_token_pool, *more = args
    return HostRelayMap(device, algorithm, req_to_token_pool, *more, **kwargs)
