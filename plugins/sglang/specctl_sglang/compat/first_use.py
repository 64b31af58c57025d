"""What SGLang compiles in the first step that needs it, for seconds on a GPU. Here it is compiled at start,
where no request waits: SGLang's own warm-up request drafts, alone, with what the server was started with."""

from __future__ import annotations

from typing import Any

import torch
from sglang.kernels.ops.attention.clamp_position import clamp_position

__all__ = ["compile_moves", "compile_plain_decode"]

_MOVED_AT_ONCE = 256
"""SGLang moves more in parts, of no more than this."""


def compile_plain_decode(device: Any) -> None:
    """A decode step without drafts computes its positions from its lengths."""
    clamp_position(torch.ones(1, dtype=torch.int64, device=device))


def compile_moves(model_runner: Any, tokens: int) -> None:
    """Of what a tree has accepted, to where a chain would be. ``tokens``: the most of a request.

    There is a kernel for each power of two of places, and another one where 16 divides their number.
    """
    mha_pool = model_runner.token_to_kv_pool_allocator.get_kvcache()
    most = min(model_runner.max_running_requests * tokens, _MOVED_AT_ONCE)
    # The place of padding, moved to where it is.
    places = torch.zeros(1 << (most - 1).bit_length(), dtype=torch.int64, device=mha_pool.device)
    for exponent in range(1, len(places).bit_length()):
        for number in (1 << exponent, (1 << exponent) - 1):
            mha_pool.move_kv_cache(places[:number], places[:number])
