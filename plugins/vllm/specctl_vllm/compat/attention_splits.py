"""Attention that runs without a graph is not split for one.

A captured FlashAttention 3 needs a bound for its splits of the keys, and vLLM sets one (32) for every batch
up to the largest captured size. With a graph for each number of drafts that is 2,304 tokens. Attention of a
batch with a prompt runs outside of its piecewise graph. Beyond 512 tokens it would make room for 32 partial
results of each, where stock vLLM lets the kernel choose.
"""

from __future__ import annotations

import functools
from typing import Any

from specctl.engine.guard import GUARD
from specctl_vllm.compat.decode_graphs import STOCK_TOKENS_MAX
from specctl_vllm.options import options_from_env

__all__ = ["wrap_build"]


def wrap_build(original: Any) -> Any:
    @functools.wraps(original)
    def build(self: Any, common_prefix_len: int, common_attn_metadata: Any, *args: Any, **kwargs: Any) -> Any:
        most = self.max_cudagraph_size
        entry = "FlashAttentionMetadataBuilder.build"
        is_large = most is not None and most > STOCK_TOKENS_MAX
        if not (is_large and GUARD.call(entry, False, _is_without_graph, self, common_attn_metadata)):
            return original(self, common_prefix_len, common_attn_metadata, *args, **kwargs)
        self.max_cudagraph_size = STOCK_TOKENS_MAX
        try:
            return original(self, common_prefix_len, common_attn_metadata, *args, **kwargs)
        finally:
            self.max_cudagraph_size = most

    return build


def _is_without_graph(builder: Any, metadata: Any) -> bool:
    """A longer query than drafts and one token is a prompt's, and no full graph of such a batch was asked
    for."""
    from vllm.config.compilation import CUDAGraphMode

    config = builder.vllm_config
    mixed = config.compilation_config.cudagraph_mode.mixed_mode()
    return bool(
        options_from_env() is not None
        and mixed != CUDAGraphMode.FULL
        and metadata.num_actual_tokens > STOCK_TOKENS_MAX
        and metadata.max_query_len > config.num_speculative_tokens + 1
    )
