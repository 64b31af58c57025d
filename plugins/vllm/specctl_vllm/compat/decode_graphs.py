"""CUDA graphs for what a live table may ask for: a full one for every number of drafts, and piecewise ones
for steps with a prompt, which hold many tokens where many requests draft."""

from __future__ import annotations

import functools
import logging
from bisect import bisect_left
from dataclasses import replace
from typing import Any

from specctl.engine.graph_memory import GIB, tokens_beside, wide_graph_bytes
from specctl.engine.guard import GUARD
from specctl_vllm.options import options_from_env

__all__ = [
    "STOCK_TOKENS_MAX",
    "ask_for_wide_graphs",
    "request_counts",
    "smallest_for",
    "wrap_dispatch",
    "wrap_init_candidates",
    "wrap_schedule_lookup",
]

logger = logging.getLogger("vllm.specctl")

STOCK_TOKENS_MAX = 512
"""Where vLLM's own default ends."""
MIXED_TOKENS_MAX, MIXED_STEP = 1024, 64
"""Up to so many, steps with a prompt get a piecewise graph every so many tokens. Without one a step waits for
its launches; from about 1,000 tokens of an 8B model on, computing them takes longer than that."""


def request_counts(most: int) -> list[int]:
    """Numbers of requests to capture, sorted; a batch between two of them is padded to the larger."""
    steps = [1, 2, 4, *range(8, 65, 8), *range(80, 257, 16), *range(288, most + 1, 32)]
    return sorted({*(count for count in steps if count < most), most})


def smallest_for(descs: list[Any], requests: int) -> Any:
    """The first of ``descs``, sorted by requests, that holds as many; None: none does."""
    at = bisect_left(descs, requests, key=lambda desc: desc.num_reqs)
    return descs[at] if at < len(descs) else None


def ask_for_wide_graphs(engine_args: Any, graph_tokens_max: int | None, target: Any) -> None:
    """Raise the largest batch that is captured, where the user has not set vLLM's own option.

    engine_args, target: vLLM's EngineArgs and the target's ModelConfig. graph_tokens_max: the option; None:
    as many as fit into the device's memory.
    """
    compilation = engine_args.compilation_config
    given = (
        engine_args.max_cudagraph_capture_size,
        engine_args.cudagraph_capture_sizes,
        compilation.max_cudagraph_capture_size,
        compilation.cudagraph_capture_sizes,
    )
    if any(value is not None for value in given):
        return
    tokens = graph_tokens_max
    if tokens is None:
        tokens = _fitting_tokens(engine_args, target)
    if tokens > STOCK_TOKENS_MAX:
        compilation.max_cudagraph_capture_size = tokens


def _fitting_tokens(engine_args: Any, target: Any) -> int:
    from vllm.platforms import current_platform

    device_bytes = current_platform.get_device_total_memory()
    share = engine_args.gpu_memory_utilization
    shape = target.get_hidden_size(), target.get_total_num_hidden_layers(), engine_args.tensor_parallel_size
    tokens = tokens_beside(device_bytes, share, *shape)
    logger.info(
        "full CUDA graphs for batches of up to %d tokens: about %.1f GiB of the %.1f GiB outside "
        "gpu_memory_utilization; graph_tokens_max sets another bound",
        tokens,
        wide_graph_bytes(tokens, *shape) / GIB,
        device_bytes * max(1.0 - share, 0.0) / GIB,
    )
    return tokens


def wrap_schedule_lookup(_: Any) -> Any:
    """In the place of the number for each batch: captures read it as the set of all that may come."""

    def every_number(
        num_speculative_tokens_per_batch_size: Any, vllm_max_batch_size: int, vllm_num_speculative_tokens: int
    ) -> list[int]:
        return [0, *range(vllm_num_speculative_tokens + 1)]

    return every_number


def wrap_init_candidates(original: Any) -> Any:
    @functools.wraps(original)
    def _init_candidates(self: Any) -> None:
        original(self)
        self.specctl_decodes = {}
        if options_from_env() is None:
            return
        largest = max(
            (desc.num_tokens for descs in self._capture_descs.values() for desc in descs), default=0
        )
        for mode, descs in self._capture_descs.items():
            grid = [desc for desc in descs if _is_of_the_grid(desc, largest)]
            decodes = _decodes(self, descs)
            for desc in decodes:
                key = desc.uniform_token_count, desc.num_active_loras
                self.specctl_decodes.setdefault(key, []).append(desc)
            self._capture_descs[mode] = sorted(grid + decodes, key=lambda desc: desc.num_tokens, reverse=True)
        self._candidates = _kept_candidates(self)

    return _init_candidates


def _kept_candidates(manager: Any) -> dict[tuple[int, int], list[Any]]:
    """By tokens and adapters: what is still captured, and the next larger batch with a prompt."""
    kept = {desc for descs in manager._capture_descs.values() for desc in descs}
    mixed = sorted((desc for desc in kept if _is_mixed(desc)), key=lambda desc: desc.num_tokens)
    found = {}
    for (tokens, loras), descs in manager._candidates.items():
        left = found[tokens, loras] = [desc for desc in descs if desc in kept]
        if tokens <= MIXED_TOKENS_MAX and not any(_is_mixed(desc) for desc in left):
            larger = [desc for desc in mixed if desc.num_tokens >= tokens and desc.num_active_loras == loras]
            left += larger[:1]
    return found


def _decodes(manager: Any, descs: list[Any]) -> list[Any]:
    """One for each number of requests, for every width that vLLM has in ``descs``; sorted by requests."""
    most = manager.compilation_config.max_cudagraph_capture_size
    shapes = {
        (desc.uniform_token_count, desc.num_active_loras): desc
        for desc in descs
        if desc.uniform_token_count is not None and desc.num_ubatches == 1
    }
    return [
        replace(desc, num_reqs=count, num_tokens=count * width)
        for (width, _), desc in shapes.items()
        for count in request_counts(manager.max_num_reqs)
        if count * width <= most
    ]


def _is_mixed(desc: Any) -> bool:
    """For steps with a prompt, and whatever else has no graph of its own."""
    return desc.uniform_token_count is None and desc.max_query_len is None and desc.num_ubatches == 1


def _is_of_the_grid(desc: Any, largest: int) -> bool:
    """The largest stays: what is captured first sizes the buffers that all graphs write their output to."""
    if not _is_mixed(desc):
        return desc.uniform_token_count is None or desc.num_ubatches > 1
    tokens: int = desc.num_tokens
    is_wide = tokens <= MIXED_TOKENS_MAX and tokens % MIXED_STEP == 0
    return tokens <= STOCK_TOKENS_MAX or is_wide or tokens == largest


def wrap_dispatch(original: Any) -> Any:
    @functools.wraps(original)
    def dispatch(
        self: Any,
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None,
        num_active_loras: int = 0,
        max_query_len: int | None = None,
        num_ubatches: int = 1,
    ) -> Any:
        if uniform_token_count and num_ubatches == 1 and self._graphs_captured:
            asked = num_reqs, num_tokens, uniform_token_count, num_active_loras
            desc = GUARD.call("CudaGraphManager.dispatch", None, _found, self, *asked)
            if desc is not None:
                return desc
        return original(
            self, num_reqs, num_tokens, uniform_token_count, num_active_loras, max_query_len, num_ubatches
        )

    return dispatch


def _found(manager: Any, requests: int, tokens: int, width: int, loras: int) -> Any:
    """The smallest graph that holds as many requests of that width; None: there is none."""
    descs = manager.specctl_decodes.get((width, manager._resolve_effective_loras(loras)), [])
    # Under data parallelism the tokens may be more than these requests': all ranks pad alike.
    return smallest_for(descs, max(requests, -(-tokens // width)))
